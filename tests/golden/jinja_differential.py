#!/usr/bin/python3
"""Random templates and contexts through Python's jinja2, set up as transformers does, and through nybble's own
interpreter; both must agree. Where one fails, the other must fail as well.

    jinja_differential.py DRIVER [--pairs 4000] [--seed 1]

Needs python3-jinja2 3.1; exits with 77 (skipped) without it. DRIVER is jinja_driver.c, compiled."""

import argparse
import datetime
import json
import random
import subprocess
import sys
import warnings

try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    print("python3-jinja2 is not installed")
    sys.exit(77)


class Generation(jinja2.ext.Extension):
    """transformers' {% generation %}: a call block that returns what is in it."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    now = datetime.datetime(2025, 8, 5, 12, 34, 56)
    env.globals["strftime_now"] = now.strftime
    return env


STRINGS = ["", "a", "user", "Hello World", "  pad \n", "x,y,,z", "<think>\nhm\n</think>\n\nok", "it's \"q\" \\ /",
           "héé 世界 😀", "ÀÉ straße ﬁ", "{{ x }}", "tab\there", "1", "-7", "3.5", "1e3", "a<b>&c", "\u00a0 nb \u2003",
           "line1\nline2\r\nline3\n", "abcabcabc", "TITLE case mIxEd", "ΑΣ ΑΣΑ", "\x00\x1f\x7f", "%s|%d", "{}-{0}"]
KEYS = ["a", "b", "role", "content", "items", "get", "name", "x y", "n"]
NAMES = ["s", "t", "n", "f", "l", "m", "d", "e", "z", "yes", "no", "u", "nope", "i", "v"]


class Maker:
    def __init__(self, rng):
        self.r = rng

    def value(self, depth=0):
        r = self.r
        k = r.randrange(11 if depth < 3 else 7)
        if k < 3:
            return r.choice(STRINGS)
        if k == 3:
            return r.choice([0, 1, -1, 2, 7, 42, -13, 10**6, 2**53 + 1, 12345678901234567890])
        if k == 4:
            return r.choice([0.0, 1.0, -0.0, 2.5, 0.1, 1e16, 1e-5, 123456789.123, 1e300, 3.0])
        if k == 5:
            return r.choice([True, False])
        if k == 6:
            return None
        if k < 9:
            return [self.value(depth + 1) for _ in range(r.randrange(4))]
        return {r.choice(KEYS): self.value(depth + 1) for _ in range(r.randrange(4))}

    def context(self):
        r = self.r
        message = lambda: dict([("role", r.choice(["user", "assistant", "tool", "system"])),
                                ("content", r.choice([r.choice(STRINGS), r.choice(STRINGS), None]))] +
                               ([("n", r.randrange(5))] if r.random() < 0.5 else []))
        return {"s": r.choice(STRINGS), "t": r.choice(STRINGS), "n": r.choice([0, 1, 3, 7, -2]), "f": r.choice([2.5, 0.1, -1.0, 3.0]),
                "l": [self.value(2) for _ in range(r.randrange(5))], "m": [message() for _ in range(r.randrange(1, 5))],
                "d": {r.choice(KEYS): self.value(1) for _ in range(r.randrange(4))}, "e": [], "z": None,
                "yes": True, "no": False, "u": r.choice(STRINGS)}

    def lit(self):
        r = self.r
        k = r.randrange(12)
        if k < 4:
            return self.quoted(r.choice(STRINGS))
        if k < 7:
            return str(r.choice([0, 1, 2, 3, 5, 10, 100]))
        if k == 7:
            return r.choice(["1.5", "0.1", "2.0", "1e3", "1e-7"])
        if k == 8:
            return r.choice(["true", "false", "none", "True", "None"])
        if k == 9:
            return "[" + ", ".join(self.expr(9) for _ in range(r.randrange(4))) + "]"
        if k == 10:
            return "{" + ", ".join(self.quoted(r.choice(KEYS)) + ": " + self.expr(9) for _ in range(r.randrange(3))) + "}"
        return r.choice(["(1, 'x')", "()", "range(3)", "range(1, 9, 3)", "dict(a=1, b='q')"])

    def quoted(self, text):
        out = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\x00", "\\x00")
        return "'" + out.replace("'", "\\'") + "'" if self.r.random() < 0.7 else '"' + out.replace('"', '\\"') + '"'

    def small(self):
        return self.r.choice(["0", "1", "2", "3", "-1", "-2", "n", "none"])

    def string(self, depth):
        r = self.r
        return r.choice(["s", "t", "u", "m[0].role", "(m[-1].content or '')", self.quoted(r.choice(STRINGS)), "(s ~ n)",
                         "(u + t)"] + (["(" + self.expr(depth + 1) + ")"] if r.random() < 0.5 else []))

    def sequence(self, depth):
        r = self.r
        return r.choice(["l", "m", "e", "[3, 1, 2]", "['b', 'a', 'B', 'a']", "range(4)", "s.split()", "(m | map(attribute='role'))",
                         "d.keys()", "d.values()", "m[::-1]", "(1, 'x', none)", "s"] + [r.choice(NAMES[:12])])

    def method(self, depth):
        r = self.r
        lit = lambda: self.quoted(r.choice(STRINGS + ["a", "b", "l", "o", " ", "\n", "think>", "xyz"]))
        calls = [".strip()", ".lstrip()", ".rstrip()", f".strip({lit()})", f".lstrip({lit()})", f".rstrip({lit()})",
                 ".split()", f".split({lit()})", f".split({lit()}, {r.randrange(3)})", f".rsplit({lit()}, 1)", ".rsplit()",
                 f".split(none, 1)", ".splitlines()", ".splitlines(true)", f".replace({lit()}, {lit()})",
                 f".replace({lit()}, {lit()}, {r.randrange(3)})", f".startswith({lit()})", f".endswith({lit()})",
                 f".find({lit()})", f".rfind({lit()})", f".count({lit()})", ".upper()", ".lower()", ".title()", ".capitalize()",
                 ".swapcase()", ".isdigit()", ".isalpha()", ".isspace()", ".isupper()", ".islower()", ".istitle()", ".isalnum()",
                 f".partition({lit()})", f".rpartition({lit()})", f".join(['a', 'b'])", f".join(l)", f".zfill({r.randrange(9)})",
                 f".center({r.randrange(12)})", f".ljust({r.randrange(12)}, '*')", f".rjust({r.randrange(12)})",
                 f".removeprefix({lit()})", f".removesuffix({lit()})", ".format(n, s)", ".format(1, 'x')", f".index({lit()})",
                 ".casefold()", ".isascii()", ".expandtabs(4)", f".find({lit()}, 1, -1)"]
        return self.string(depth) + r.choice(calls)

    def filter(self, depth):
        r = self.r
        lit = lambda: self.quoted(r.choice(STRINGS))
        text = ["upper", "lower", "title", "capitalize", "trim", "trim('x ')", f"replace({lit()}, {lit()})", "replace('a', 'b', 1)",
                "indent", "indent(2, true)", "indent(width=3, blank=true)", "length", "list", "first", "last", "reverse", "int",
                "int(9)", "float", "e", "escape", "safe", "center(12)", "truncate(8)", "truncate(6, true)", "wordcount", "urlencode",
                "striptags", "count", "join('-')", "unique|list", "sort|join"]
        seq = ["length", "list", "first", "last", "reverse|list", "join", f"join({lit()})", "unique|list", "sort", "sort(reverse=true)",
               "min", "max", "sum", "batch(2)|list", "slice(2)|list", "batch(2, 'f')|list", "map('upper')|list",
               "map('string')|join('-')", "select|list", "reject|list", "select('string')|list", "reject('none')|list",
               "map('length')|list", "sort(case_sensitive=true)", "select('in', [1, 'a'])|list", "tojson", "string", "map('int')|sum"]
        anything = ["string", "tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))",
                    "tojson(sort_keys=true)", "default('d')", "default('d', true)", "d(n)", "abs", "round", "round(1)",
                    "round(2, 'floor')", "int", "float", "string|length", "items|list", "dictsort", "e"] + text[:6] + seq[:6]
        msg = ["map(attribute='role')|list", "map(attribute='n', default=0)|list", "selectattr('role', 'equalto', 'user')|list",
               "rejectattr('content', 'none')|list", "selectattr('n')|list|length", "selectattr('n', 'defined')|map(attribute='n')|list",
               "groupby('role')|list", "sort(attribute='role')|map(attribute='content')|list", "join(',', attribute='role')",
               "map(attribute='content')|select('string')|join('|')", "unique(attribute='role')|map(attribute='role')|list",
               "sum(attribute='n')", "sum(attribute='n', start=1)", "first|tojson", "last|items|list", "tojson", "max(attribute='role')|tojson"]
        if r.random() < 0.25:
            return "m | " + r.choice(msg)
        if r.random() < 0.4:
            return self.string(depth) + " | " + r.choice(text)
        if r.random() < 0.5:
            return f"({self.sequence(depth)}) | " + r.choice(seq)
        return f"({self.expr(depth + 1)}) | " + r.choice(anything)

    def test(self, depth):
        r = self.r
        t = r.choice(["defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable",
                      "sequence", "true", "false", "odd", "even", "divisibleby 3", "divisibleby(2)", "eq 1", "equalto('a')", "ne 2",
                      "lt 3", "gt 1", "ge 0", "le 5", "in ['a', 1]", "in('abc')", "upper", "lower", "callable", "sameas none",
                      "not none", "not string", "escaped"])
        return f"({self.expr(depth + 1)}) is {t}"

    def expr(self, depth=0):
        r = self.r
        if depth > 3:
            return r.choice(NAMES[:12]) if r.random() < 0.6 else (self.lit() if depth < 9 else self.quoted(r.choice(STRINGS[:5])))
        k = r.randrange(24)
        e = lambda: self.expr(depth + 1)
        if k < 3:
            return r.choice(NAMES)
        if k < 5:
            return self.lit()
        if k < 8:
            return self.method(depth)
        if k < 12:
            return self.filter(depth)
        if k == 12:
            return self.test(depth)
        if k == 13:
            return r.choice([f"{self.string(depth)} + {self.string(depth)}", f"{e()} ~ {e()}", f"n {r.choice(['+', '-', '*', '//', '%'])} 3",
                             f"(n {r.choice(['+', '-', '*', '/'])} f)", f"{e()} {r.choice(['+', '-', '*', '/', '//', '%'])} {e()}"])
        if k == 14:
            if r.random() < 0.6:
                return r.choice([f"{self.string(depth)} in {self.string(depth)}", f"n {r.choice(['<', '<=', '>', '>=', '=='])} {self.small()}",
                                 f"({e()}) == ({e()})", f"({e()}) != ({e()})", f"({e()}) in ({self.sequence(depth)})"])
            return f"({e()}) {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} ({e()})"
        if k == 15:
            return f"({e()} {r.choice(['and', 'or'])} {e()})"
        if k == 16:
            return f"not {e()}"
        if k == 17:
            return f"({e()} if {e()} else {e()})" if r.random() < 0.8 else f"({e()} if {e()})"
        if k == 18:
            step = r.choice(["", "", ":2", ":-1", ":1", ":-2"])
            return f"({self.sequence(depth)})[{r.choice([self.small(), ''])}:{r.choice([self.small(), ''])}{step}]"
        if k == 19:
            return f"({e()})[{r.choice([self.small(), self.quoted(r.choice(KEYS))])}]"
        if k == 20:
            return f"({e()}).{r.choice(['a', 'b', 'role', 'content', 'items()', 'keys()|list', 'values()|list', 'get(' + self.quoted(r.choice(KEYS)) + ')', 'get(0, 1)', 'count(1)'])}"
        if k == 21:
            return r.choice(["-n", "-f", "+n", "-(n)", "-2 ** 2", "n ** 2", "2 ** -1", "n // 2", "-n // 2", "n % 3", "-7 % 3", "f // 1"])
        if k == 22:
            fmt = r.choice(["'%s'", "'%d'", "'%5s|'", "'%-5s|'", "'%05d'", "'%.2f'", "'%x'", "'%r'", "'%e'", "'%g'", "'%%'", "'%s %s'"])
            return f"{fmt} % {e()}" if r.random() < 0.5 else f"{fmt} | format({e()})"
        spec = r.choice(["{}", "{:>8}", "{:<8}|", "{:^9}", "{:*^9}", "{:05}", "{:,}", "{:.2f}", "{:+}", "{:x}", "{!r}", "{0}{0}", "{:e}", "{:%}", "{:g}", "{:.3}", "{:#x}", "{:b}"])
        return f"'{spec}'.format({e()})"

    def sep(self, open_, close):
        r = self.r
        return open_ + r.choice(["", "", "", "-", "+" if open_ == "{%" else ""]) + " ", " " + r.choice(["", "", "", "-"]) + close

    def tag(self, body):
        a, b = self.sep("{%", "%}")
        return a + body + b

    def data(self):
        return self.r.choice(["", "text", " ", "\n", "\n\n", "  \n  ", "a\n  ", "<|im_start|>", "x ", "\t\n", "{ }", "# c\n", "\r\n", " y\n"])

    def body(self, depth, loop):
        return "".join(self.data() + self.statement(depth + 1, loop) for _ in range(self.r.randrange(1, 3))) + self.data()

    def statement(self, depth=0, loop=False):
        r = self.r
        k = r.randrange(20 if depth < 3 else 7)
        if k < 6:
            a, b = self.sep("{{", "}}")
            if loop and r.random() < 0.3:
                return a + r.choice(["loop.index", "loop.index0", "loop.first", "loop.last", "loop.length", "loop.revindex", "loop.previtem",
                                     "loop.nextitem", "loop.depth", "loop.cycle('a', 'b')", "loop.changed(v)", "v", "i"]) + b
            return a + self.expr() + b
        if k == 6:
            return r.choice(["{# c #}", "{#- c -#}", "{# c\n #}\n", "{#+ c -#}"])
        if k < 9:
            out = self.tag("if " + self.expr(1)) + self.body(depth, loop)
            if r.random() < 0.3:
                out += self.tag("elif " + self.expr(1)) + self.body(depth, loop)
            if r.random() < 0.5:
                out += self.tag("else") + self.body(depth, loop)
            return out + self.tag("endif")
        if k < 12:
            it = r.choice(["l", "m", "m[::-1]", "range(3)", "d", "d.items()|list|map('first')", "s", "e", "nope", "[1, 2, 3]", self.expr(2)])
            cond = " if " + self.expr(2) if r.random() < 0.25 else ""
            out = self.tag(f"for v in {it}{cond}") + self.body(depth, True)
            if r.random() < 0.2:
                out += self.tag("if loop.index0 == 1") + self.tag(r.choice(["break", "continue"])) + self.tag("endif") + self.data()
            if r.random() < 0.2:
                out += self.tag("else") + self.body(depth, loop)
            return out + self.tag("endfor")
        if k == 12:
            return self.tag("for i, v in " + r.choice(["d.items()", "d|items", "[(1, 2), (3, 4)]", "d|dictsort"])) + self.body(depth, True) + self.tag("endfor")
        if k < 15:
            return self.tag(f"set {r.choice(['i', 'v', 'q'])} = {self.expr(1)}")
        if k == 15:
            return self.tag("set q") + self.body(depth, loop) + self.tag("endset") + "{{ q | length }}{{ q }}"
        if k == 16:
            return (self.tag(f"set ns = namespace(c=0, t={self.quoted(r.choice(STRINGS))})") + self.tag("for v in m") +
                    self.tag("set ns.c = ns.c + 1") + self.tag(f"set ns.t = {r.choice(['ns.t ~ v.role', 'v.content', 'ns.t + v.role'])}") +
                    self.body(depth, True) + self.tag("endfor") + "{{ ns.c }}{{ ns.t }}")
        if k == 17:
            name = "f%d" % depth
            return (self.tag(f"macro {name}(a, b={self.lit()})") + self.body(depth, False) + "{{ a }}|{{ b }}" + self.tag("endmacro") +
                    "{{ %s(%s) }}" % (name, r.choice(["1", "s, n", "b=2", "a=s", "", "1, b=l", "1, 2, 3", "c=1"])))
        if k == 18:
            return r.choice([self.tag("with q = " + self.expr(2)) + self.body(depth, loop) + self.tag("endwith"),
                             self.tag("filter upper") + self.body(depth, loop) + self.tag("endfilter"),
                             self.tag("generation") + self.body(depth, False) + self.tag("endgeneration"),
                             self.tag("raw") + "{{ x }} {% if %}" + self.tag("endraw"),
                             self.tag("macro w(x)") + "<{{ caller() }}{{ x }}>" + self.tag("endmacro") + self.tag("call w(n)") + self.body(depth, False) + self.tag("endcall")])
        return r.choice(["{{ raise_exception('no ' ~ s) }}", "{{ strftime_now('%Y-%m-%d %H:%M') }}", "{{ joiner is defined }}"])

    def template(self):
        return "".join(self.data() + self.statement() for _ in range(self.r.randrange(1, 4))) + self.data()


def render(env, template, context):
    """(text, None, what failed) or (None, error kind, message); None: no use as an oracle."""
    try:
        # lists are sliced by some filters and returned: a fresh context keeps one run from touching another
        text = env.from_string(template).render(**json.loads(context))
    except jinja2.exceptions.TemplateError as e:
        return None, type(e).__name__, str(e)
    except Exception as e:  # noqa: BLE001 - whatever Python raises is an error of the template
        return None, type(e).__name__, str(e)
    return text, None, None


def unusable(text):
    """Addresses of objects, and what has no well-formed UTF-8."""
    return " at 0x" in text or any(0xD800 <= ord(c) < 0xE000 for c in text)


def shown(message):
    """Error messages hold no control characters and end at a NUL."""
    return "".join("?" if ord(c) < 32 or ord(c) == 127 else c for c in message.split("\x00")[0])


def beyond(message):
    """Failures by design: integers beyond 64 bits, and what docs/TEXT.md lists as not supported."""
    return "64 bits" in message or "not supported" in message or "generator" in message


def main():
    args = argparse.ArgumentParser()
    args.add_argument("driver")
    args.add_argument("--pairs", type=int, default=4000)
    args.add_argument("--seed", type=int, default=1)
    args.add_argument("--show", type=int, default=10)
    args = args.parse_args()
    warnings.simplefilter("ignore")  # of the Python code that jinja2 makes
    env = environment()
    maker = Maker(random.Random(args.seed))
    driver = subprocess.Popen([args.driver], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    rendered = failed = skipped = differ = 0
    for number in range(args.pairs):
        template = maker.template()
        context = json.dumps(maker.context())
        driver.stdin.write((json.dumps({"t": template, "ctx": json.loads(context)}) + "\n").encode())
        driver.stdin.flush()
        ours = json.loads(driver.stdout.readline())
        text, kind, message = render(env, template, context)
        if text is not None and unusable(text):
            skipped += 1
            continue
        if "err" in ours and text is not None and beyond(ours["err"]):
            skipped += 1
            continue
        if text is not None:
            rendered += 1
            same = ours.get("out") == text
        else:
            failed += 1
            same = "err" in ours and (kind != "TemplateError" or ours["err"] == shown(message))
        if not same:
            differ += 1
            if differ <= args.show:
                print(f"pair {number} of seed {args.seed} differs\n  template {template!r}\n  context  {context}\n"
                      f"  python   {text if text is not None else kind + ': ' + message!r}\n  ours     {ours!r}")
    driver.stdin.close()
    print(f"{args.pairs} pairs of seed {args.seed}: {rendered} rendered, {failed} failed on both sides, {skipped} not comparable, {differ} differ")
    return 1 if differ or driver.wait() else 0


if __name__ == "__main__":
    sys.exit(main())
