/* Answers and what they are: a line for each thing that a format may say, and texts that only look like
 * calls. */
#ifndef NYB_PARSE_EXAMPLES_H
#define NYB_PARSE_EXAMPLES_H

#include <stdbool.h>

#define CALL_MARK "\x01" /* between the calls of a trace */

static const char weather_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\","
    " \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"},"
    " \"scale\": {\"type\": \"number\"}, \"wind\": {\"type\": \"boolean\"}, \"where\": {\"type\": "
    "\"object\"},"
    " \"list\": {\"type\": [\"array\", \"null\"]}, \"maybe\": {\"anyOf\": [{\"type\": \"integer\"},"
    " {\"type\": \"null\"}]}, \"unit\": {\"enum\": [\"c\", \"f\"]}, \"any\": {}}}}}]";

struct example {
    const char *format;
    bool opened, tools;
    const char *text;
    const char *reasoning, *content;
    const char *calls; /* name(arguments), each followed by CALL_MARK */
};

/* clang-format off */
static const struct example examples[] = {
    {"qwen3", 0, 0, "Hello, world!\n", "", "Hello, world!\n", ""},
    {"qwen3", 0, 0, "", "", "", ""},
    {"qwen3", 0, 0, "<think>\nHm.\n\nYes.\n</think>\n\nHello", "Hm.\n\nYes.", "Hello", ""},
    {"qwen3", 0, 0, "<think>\n\n</think>\n\nHello\n\nthere", "", "Hello\n\nthere", ""},
    {"qwen3", 1, 0, "Hm.\n</think>\n\nHello", "Hm.", "Hello", ""},
    {"qwen3", 1, 0, "<think>\nHm.</think>Hello", "Hm.", "Hello", ""},
    {"qwen3", 1, 0, "a <think> b</think>c", "a <think> b", "c", ""},
    {"qwen3", 0, 0, "<think><think>a</think>b", "<think>a", "b", ""},
    {"qwen3", 0, 0, "\xf0\x9f\x9a\x80 caf\xc3\xa9<\xe6\x9d\xb1", "", "\xf0\x9f\x9a\x80 caf\xc3\xa9<\xe6\x9d\xb1", ""},
    {"qwen3", 0, 0, "<<tool_call>{\"name\":\"f\"}</tool_call>", "", "<", "f({})" CALL_MARK},
    {"qwen3", 0, 0, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>", "", "<tool_call>", "f({})" CALL_MARK},
    {"qwen3", 1, 0, "unfinished thought\n", "unfinished thought\n", "", ""},
    {"qwen3", 0, 0, "\n\n<think>a</think>b", "a", "b", ""},
    {"qwen3", 0, 0, "The tag <think> opens it, </think> closes it.", "", "The tag <think> opens it, </think> closes it.", ""},
    {"qwen3", 0, 0, "<think>a <thin </thin> <tool_call></think>b</think>", "a <thin </thin> <tool_call>", "b</think>", ""},
    {"qwen3", 0, 0, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", "", "f({\"a\": 1})" CALL_MARK},
    {"qwen3", 0, 0, "<think>r</think>\n\nSure.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>\\n\"}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>\nDone",
     "r", "Sure.\nDone", "f({\"a\": \"</tool_call>\\n\"})" CALL_MARK "g({})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1, 2]}\"}</tool_call>", "", "", "f({\"a\": [1, 2]})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\",\"parameters\":null}</tool_call>", "", "", "f({})" CALL_MARK "g({})" CALL_MARK},
    {"hermes", 0, 0, "<tool_call>{\"name\":\"caf\\u00e9\",\"arguments\":{\"x\":12345678901234567890.10,\"y\":{\"z\":[{},[],\"\\\"}\"]}}}</tool_call>", "", "",
     "caf\xc3\xa9({\"x\":12345678901234567890.10,\"y\":{\"z\":[{},[],\"\\\"}\"]}})" CALL_MARK},
    {"qwen3_coder", 0, 1, "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nS\xc3\xa3o \"Paulo\"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=scale>\n.5\n</parameter>\n<parameter=wind>\nTrue\n</parameter>\n</function>\n</tool_call>",
     "", "I look.", "weather({\"city\": \"S\xc3\xa3o \\\"Paulo\\\"\", \"days\": 3, \"scale\": 0.5, \"wind\": true})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=where>{\"x\": [1]}</parameter><parameter=list>null</parameter><parameter=maybe>null</parameter><parameter=city>null</parameter><parameter=unit>f</parameter><parameter=any>7</parameter><parameter=other>8</parameter></function></tool_call>",
     "", "", "weather({\"where\": {\"x\": [1]}, \"list\": null, \"maybe\": null, \"city\": \"null\", \"unit\": \"f\", \"any\": \"7\", \"other\": \"8\"})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=days>many</parameter><parameter=where>{broken</parameter><parameter=wind>perhaps</parameter></function></tool_call>",
     "", "", "weather({\"days\": \"many\", \"where\": \"{broken\", \"wind\": \"perhaps\"})" CALL_MARK},
    {"qwen3_coder", 0, 0, "<tool_call><function=run><parameter=code>\n\nif a < b:\n    x = \"</p\"\n\n</parameter></function></tool_call>",
     "", "", "run({\"code\": \"\\nif a < b:\\n    x = \\\"</p\\\"\\n\"})" CALL_MARK},
    {"qwen3_coder", 0, 0, "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", "", "now({})" CALL_MARK},
    {"qwen3_coder", 1, 0, "I must call.\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "I must call.", "", "now({})" CALL_MARK},
    {"qwen3_coder", 1, 0, "A <tool_call> is a tag.</think>Yes", "A <tool_call> is a tag.", "Yes", ""},
    {"glm45", 0, 1, "\n<think>Look.</think>\nLooking.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
     "Look.", "Looking.", "weather({\"city\": \"12\", \"days\": 3})" CALL_MARK},
    {"glm47", 1, 0, "Look.</think><tool_call>f<arg_key>a</arg_key><arg_value>[1, {\"b\": null}]</arg_value><arg_key>c</arg_key><arg_value> x <y>\n</arg_value></tool_call><tool_call>g</tool_call>",
     "Look.", "", "f({\"a\": [1, {\"b\": null}], \"c\": \" x <y>\\n\"})" CALL_MARK "g({})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=days>\n0\n</parameter><parameter=scale>0.50</parameter><parameter=maybe> -0 </parameter></function></tool_call>",
     "", "", "weather({\"days\": 0, \"scale\": 0.50, \"maybe\": -0})" CALL_MARK},
    {"qwen3_coder", 0, 1, "<tool_call><function=weather><parameter=days>007</parameter><parameter=scale>+.5e1</parameter><parameter=wind>FALSE</parameter><parameter=where></parameter></function></tool_call>",
     "", "", "weather({\"days\": \"007\", \"scale\": 5.0, \"wind\": false, \"where\": \"\"})" CALL_MARK},
    {"glm47", 0, 0, "<tool_call>f<arg_key>a</arg_key><arg_value> [1] </arg_value><arg_key>b</arg_key><arg_value> </arg_value><arg_key>c</arg_key><arg_value></arg_value></tool_call>",
     "", "", "f({\"a\": [1], \"b\": \" \", \"c\": \"\"})" CALL_MARK},
    {"mistral", 0, 0, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
     "", "", "f({\"a\": \"]\"})" CALL_MARK "g({})" CALL_MARK},
    {"mistral", 0, 0, "Yes. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "", "Yes. ", "f({})" CALL_MARK},
    {"mistral", 0, 0, "[TOOL_CALLS]f[ARGS]{\"a\": {\"b\": 1}}[TOOL_CALLS]g{\"c\": 2}[TOOL_CALLS]h[CALL_ID]abc123def[ARGS] {}",
     "", "", "f({\"a\": {\"b\": 1}})" CALL_MARK "g({\"c\": 2})" CALL_MARK "h({})" CALL_MARK},
    {"mistral", 0, 0, "[THINK]why[/THINK]because [1]", "why", "because [1]", ""},
    {"ernie45", 1, 0, "abc\n</think>\n\n\n<response>\ndef\n</response>\n", "abc", "def", ""},
    {"ernie45", 1, 0, "abc\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n", "abc", "", "f({\"a\": 1})" CALL_MARK},
    {"ernie45", 0, 0, "<think>\nabc\n</think>\n\ndef <response> ghi</response>", "abc", "def <response> ghi</response>", ""},
    {"think", 0, 0, "<think>a</think>\n<tool_call>{\"name\": \"f\"}</tool_call>", "a", "<tool_call>{\"name\": \"f\"}</tool_call>", ""},
    {"plain", 0, 0, "<think>a</think>\n<tool_call>[TOOL_CALLS]\n", "", "<think>a</think>\n<tool_call>[TOOL_CALLS]\n", ""},
};

/* The answer is the text itself. */
static const struct { const char *format, *text; } malformed[] = {
    {"qwen3", "a\n<tool_call>\nnot JSON\n</tool_call>\nb"},
    {"qwen3", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {}}"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {}} and more </tool_call>"},
    {"qwen3", "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"arguments\": {}}</tool_call>\n"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\"}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\\u0000\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"\\ud800\", \"arguments\": {}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\n\"}}</tool_call>"},
    {"qwen3", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\xff\"}}</tool_call>"},
    {"qwen3", "<tool_call>{'name': 'f'}</tool_call>"},
    {"qwen3", "<tool_call><tool_call><tool_cal"},
    {"qwen3", "</tool_call> < <t <to </think>"},
    {"qwen3_coder", "<tool_call>\n<function=>\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f g>\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>\n<function=f>\ntext\n</function>\n</tool_call>"},
    {"qwen3_coder", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"},
    {"glm45", "<tool_call></tool_call>"},
    {"glm45", "<tool_call>f\n<arg_key>a</arg_key>\n</tool_call>"},
    {"glm45", "<tool_call>f\n<arg_key></arg_key>\n<arg_value>1</arg_value></tool_call>"},
    {"glm45", "<tool_call>f and g</tool_call>"},
    {"glm45", "<tool_call>f\n<arg_value>a</arg_value>\n</tool_call>"},
    {"mistral", "[TOOL_CALLS]"},
    {"mistral", "[TOOL_CALLS] [] and"},
    {"mistral", "[TOOL_CALLS][1]"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 2]"},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {}]"},
    {"mistral", "[TOOL_CALLS]hello world"},
    {"mistral", "[TOOL_CALLS]f[ARGS]hello"},
    {"mistral", "[TOOL_CALLS]f[ARGS]{\"a\": }"},
    {"mistral", "[TOOL_CALLS]f[CALL_ID]a b[ARGS]{}"},
    {"ernie45", "<tool_call>\ndef\n</tool_call>\n"},
};
/* clang-format on */

#endif
