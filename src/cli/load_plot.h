/* Line and scatter plots as SVG inside a page: colours come from the page's CSS, so that they follow its
 * light and dark themes, and nothing outside the page is needed. */
#ifndef NYB_CLI_LOAD_PLOT_H
#define NYB_CLI_LOAD_PLOT_H

#include <stdbool.h>

#include "base/buf.h"

struct load_point {
    double x, y;
};

enum load_plot_style { LOAD_PLOT_LINE, LOAD_PLOT_STEPS, LOAD_PLOT_DOTS };

struct load_plot {
    const char *title, *x_label, *y_label; /* ASCII without markup */
    enum load_plot_style style;
    const struct load_point *point; /* (n_point), finite; ascending in x but for dots */
    size_t n_point;
    double y_most; /* the top of the y axis; 0: by the points */
    /* Points with a name, drawn over the others. */
    const struct load_point *mark;
    const char *const *mark_name;
    size_t n_mark;
};

/* Both axes begin at 0, or at the smallest x where all x are far from it. */
void load_plot_add(struct buf *page, const struct load_plot *p);

/* A round step (1, 2 or 5 times a power of ten) that cuts `span` into at most `most` parts. */
double load_plot_step(double span, int most);

/* The rules that the plots need, without <style>. They use --ink, --soft, --line and --accent. */
extern const char load_plot_css[];

#endif
