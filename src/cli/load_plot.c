#include "cli/load_plot.h"

#include <math.h>

/* The picture and the box of the axes in it, in pixels. */
#define WIDTH  560.0
#define HEIGHT 320.0
#define LEFT   64.0
#define RIGHT  20.0
#define TOP    40.0
#define BOTTOM 52.0

#define TICKS_X 8
#define TICKS_Y 5

const char load_plot_css[] =
    "svg.plot{width:560px;max-width:100%;height:auto;font:12px system-ui,sans-serif}"
    "svg.plot text{fill:var(--ink)}svg.plot .title{font-weight:600;font-size:14px}svg.plot "
    ".soft{fill:var(--soft)}"
    "svg.plot .grid{stroke:var(--line);fill:none}svg.plot .axis{stroke:var(--soft);fill:none}"
    "svg.plot .curve{stroke:var(--accent);stroke-width:2;stroke-linejoin:round;fill:none}"
    "svg.plot .dot{fill:var(--accent);fill-opacity:.55}"
    "svg.plot .mark{fill:var(--paper);stroke:var(--accent);stroke-width:2}";

double load_plot_step(double span, int most)
{
    if (!(span > 0))
        return 1;
    double power = pow(10, floor(log10(span / most)));
    static const double factor[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (power * factor[i]) <= most + 1e-9)
            return power * factor[i];
    return power * 10;
}

struct axis {
    double lo, hi, step;
};

static struct axis make_axis(double least, double most, int ticks)
{
    struct axis a = {.lo = least > 0.5 * most ? least : 0, .hi = most};
    if (!(a.hi > a.lo))
        a.hi = a.lo + 1;
    a.step = load_plot_step(a.hi - a.lo, ticks);
    a.lo = floor(a.lo / a.step + 1e-9) * a.step;
    a.hi = ceil(a.hi / a.step - 1e-9) * a.step;
    return a;
}

static double x_of(const struct axis *x, double v)
{
    return LEFT + (v - x->lo) / (x->hi - x->lo) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct axis *y, double v)
{
    return HEIGHT - BOTTOM - (v - y->lo) / (y->hi - y->lo) * (HEIGHT - TOP - BOTTOM);
}

static void add_axes(struct buf *b, const struct load_plot *p, const struct axis *x, const struct axis *y)
{
    double base = HEIGHT - BOTTOM;
    for (int i = 0; y->lo + i * y->step <= y->hi * (1 + 1e-9); i++) {
        double v = y->lo + i * y->step, at = y_of(y, v);
        buf_printf(b, "<path class=\"grid\" d=\"M%g %.1fH%g\"/>", LEFT, at, WIDTH - RIGHT);
        buf_printf(b, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%.6g</text>", LEFT - 8, at + 4, v);
    }
    for (int i = 0; x->lo + i * x->step <= x->hi * (1 + 1e-9); i++) {
        double v = x->lo + i * x->step, at = x_of(x, v);
        buf_printf(b, "<path class=\"axis\" d=\"M%.1f %gv5\"/>", at, base);
        buf_printf(b, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%.6g</text>", at, base + 19, v);
    }
    buf_printf(b, "<path class=\"axis\" d=\"M%g %gV%gH%g\"/>", LEFT, TOP, base, WIDTH - RIGHT);
    buf_printf(b, "<text class=\"title\" x=\"%g\" y=\"20\" text-anchor=\"middle\">%s</text>",
               (LEFT + WIDTH - RIGHT) / 2, p->title);
    buf_printf(b, "<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>",
               (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, p->x_label);
    buf_printf(
        b, "<text class=\"soft\" transform=\"translate(14 %g) rotate(-90)\" text-anchor=\"middle\">%s</text>",
        (TOP + base) / 2, p->y_label);
}

static void add_curve(struct buf *b, const struct load_plot *p, const struct axis *x, const struct axis *y)
{
    buf_add_str(b, "<path class=\"curve\" d=\"");
    for (size_t i = 0; i < p->n_point; i++) {
        double at = x_of(x, p->point[i].x), up = y_of(y, p->point[i].y);
        if (i == 0)
            buf_printf(b, "M%.1f %.1f", at, up);
        else if (p->style == LOAD_PLOT_STEPS)
            buf_printf(b, "H%.1fV%.1f", at, up);
        else
            buf_printf(b, "L%.1f %.1f", at, up);
    }
    buf_add_str(b, "\"/>");
}

static void add_marks(struct buf *b, const struct load_plot *p, const struct axis *x, const struct axis *y)
{
    for (size_t i = 0; i < p->n_mark; i++) {
        double at = x_of(x, p->mark[i].x), up = y_of(y, p->mark[i].y);
        bool left = at > WIDTH * 0.72; /* the name goes where there is room */
        buf_printf(b, "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>", at, up);
        buf_printf(b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>", at + (left ? -9 : 9),
                   up + (left ? -6 : 14), left ? "end" : "start", p->mark_name[i]);
    }
}

void load_plot_add(struct buf *page, const struct load_plot *p)
{
    double x_least = INFINITY, x_most = -INFINITY, y_most = p->y_most;
    for (size_t i = 0; i < p->n_point; i++) {
        x_least = fmin(x_least, p->point[i].x);
        x_most = fmax(x_most, p->point[i].x);
        y_most = p->y_most > 0 ? y_most : fmax(y_most, p->point[i].y);
    }
    if (p->n_point == 0)
        return;
    struct axis x = make_axis(x_least, x_most, TICKS_X), y = make_axis(0, y_most, TICKS_Y);
    buf_printf(page, "<svg class=\"plot\" viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">", WIDTH,
               HEIGHT, p->title);
    add_axes(page, p, &x, &y);
    if (p->style != LOAD_PLOT_DOTS)
        add_curve(page, p, &x, &y);
    for (size_t i = 0; p->style == LOAD_PLOT_DOTS && i < p->n_point; i++)
        buf_printf(page, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", x_of(&x, p->point[i].x),
                   y_of(&y, p->point[i].y));
    add_marks(page, p, &x, &y);
    buf_add_str(page, "</svg>\n");
}
