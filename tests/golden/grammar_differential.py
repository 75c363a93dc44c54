#!/usr/bin/env python3
"""Constraints beside Python's own judges: texts that the automata make are valid JSON under the schema
(jsonschema) or match the expression (re); what the judges refuse, the automata refuse; what the tables below
say is accepted, is. usage: grammar_differential.py DRIVER [--walks N] [--seed S]; 77: jsonschema is not there"""
import argparse
import json
import random
import re
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    jsonschema = None

NODE = {"$ref": "#/$defs/node"}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {
    "type": "object", "required": ["v"], "additionalProperties": False,
    "properties": {"v": {"type": "integer"}, "kids": {"type": "array", "items": NODE, "maxItems": 3}}}}}
PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b", "c\"d"]}, "maxItems": 4}}, "required": ["name", "age"],
    "additionalProperties": False}

# (schema, texts that must be accepted, texts that must not)
SCHEMAS = [
    ({}, ["1", "null", "[]", "{\"a\":[{}]}"], ["", "01", "tru", "{\"a\"}"]),
    (True, ["\"x\""], ["x"]),
    ({"type": "string"}, ['""', '"a\\n\\u00e9\\ud83d\\ude00"', '"é🐟"'], ['"', '"\n"', '"\\ud83d"', "'a'", '"\\x"']),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ['"ab"', '"🐟🐟🐟🐟"', '"\\u00e9\\n"', '"\\ud83d\\ude00a"'],
     ['"a"', '"abcde"', '"\\ud83d\\ude00"']),
    ({"type": "string", "maxLength": 2000}, ['"' + "x" * 2000 + '"'], ['"' + "x" * 2001 + '"']),
    ({"type": "string", "pattern": "^[a-z]{2,3}$"}, ['"ab"', '"abc"'], ['"a"', '"abcd"', '"aB"']),
    ({"type": "string", "pattern": "^[a-z0-9-]+$", "maxLength": 6}, ['"a"', '"a-b-1"', '"abcdef"'], ['""', '"abcdefg"', '"A"']),
    ({"type": "string", "pattern": "^[A-Z]{3}$", "minLength": 3, "maxLength": 3}, ['"ABC"'], ['"AB"', '"ABCD"']),
    ({"type": "string", "pattern": "^é+(, é+)*$", "minLength": 1, "maxLength": 12}, ['"é"', '"é, é"'], ['""', '"' + "é" * 13 + '"']),
    ({"type": "string", "pattern": "b", "minLength": 1, "maxLength": 5}, ['"b"', '"abc"', '"\\néb"'], ['"aaa"', '"bbbbbb"']),
    ({"type": "string", "pattern": "^(a|bc{2,})$", "maxLength": 4}, ['"a"', '"bcc"', '"bccc"'], ['"bc"', '"bcccc"']),
    ({"type": "string", "pattern": "^[^ ]*$", "maxLength": 5000}, ['""', '"' + "x" * 1024 + '"'], ['"a b"']),
    ({"type": "string", "pattern": "b+"}, ['"abbc"', '"b"'], ['"ac"', '""']),
    ({"type": "string", "pattern": "^a|z$"}, ['"axx"', '"xxz"'], ['"xx"']),
    ({"type": "string", "pattern": "^[\"\\\\\\n]+$"}, ['"\\"\\\\\\n"'], ['"a"']),
    ({"type": "string", "format": "date"}, ['"2024-02-28"', '"1999-12-31"'], ['"2024-13-01"', '"24-01-01"', '"2024-04-31"']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-28T01:02:03Z"', '"2021-01-01T23:59:59.123+01:00"'], ['"2024-02-28"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"']),
    ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"', '"255.255.255.255"'], ['"256.0.0.1"', '"1.2.3"']),
    ({"type": "string", "format": "email"}, ['"a.b@example.org"'], ['"a@b"', '"@x.y"']),
    ({"type": "string", "format": "duration"}, ['"P3D"', '"PT1H2M3S"', '"P1DT90M"', '"PT5S"', '"P2W"'], ['"P"', '"PT"', '"3D"', '"P1DT"', '"P1H"']),
    ({"type": "string", "format": "uuid4"}, ['"123e4567-e89b-42d3-a456-426614174000"'], ['"123e4567-e89b-12d3-a456-426614174000"']),
    ({"type": "string", "format": "ipv6"}, ['"::"', '"::1"', '"fe80::1"', '"2001:db8::a:1"', '"1:2:3:4:5:6:7:8"', '"1:2:3::4:5:6:7"'],
     ['":"', '"1:2:3:4:5:6:7"', '"1:2:3:4:5:6:7:8:9"', '"1::2::3"', '"g::"', '"1:2:3::4:5:6:7:8"']),
    ({"type": "string", "format": "base64"}, ['""', '"QUJD"', '"QQ=="', '"QUI="'], ['"QUJ"', '"Q==="', '"QUJD="']),
    ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}, ['"https://a.b/c"'], ['""', '"a"']),
    ({"type": "string", "format": "password", "minLength": 2, "maxLength": 3}, ['"ab"', '"a c"'], ['"a"', '"abcd"']),
    ({"type": "integer", "format": "int32"}, ["2147483647", "-2147483648"], ["2147483648", "-2147483649"]),
    ({"type": "integer", "format": "uint8", "minimum": 3}, ["3", "255"], ["2", "256"]),
    ({"type": "integer", "format": "int64"}, ["999999999999999999"], ["1.0"]),
    ({"type": "integer"}, ["0", "-12", "123456789012345678"], ["1.5", "01", "+1", "1e3", "-"]),
    ({"type": "number"}, ["0", "-1.50", "2e10", "0.001E-05"], [".5", "1.", "NaN", "1e400"]),
    ({"type": "integer", "minimum": -17, "maximum": 1234}, ["-17", "0", "9", "99", "999", "1234"], ["-18", "1235", "2000", "99999"]),
    ({"type": "integer", "minimum": 100}, ["100", "999", "1000"], ["99", "-100", "0"]),
    ({"type": "integer", "maximum": -5}, ["-5", "-10", "-999"], ["-4", "0", "5"]),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 5}, ["4"], ["3", "5"]),
    ({"type": "integer", "minimum": 0.5, "maximum": 2.5}, ["1", "2"], ["0", "3"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "1", "0.5", "1.0", "0.001"], ["1.1", "-0.1", "2"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "1", "12.5"], ["0", "-1", "-0.5"]),
    ({"type": "number", "minimum": 0.25, "maximum": 0.75}, ["0.25", "0.3", "0.30", "0.75", "0.7", "0.5", "0.749999", "0.2501"],
     ["0.2", "0.249", "0.751", "0.750001", "0", "1", "-0.5", ".5", "0.8"]),
    ({"type": "number", "minimum": -1.5, "maximum": 2.25}, ["-1.5", "-1.50", "2.25", "0", "0.0", "-0.01", "2", "-1", "1.999", "-1.4999", "2.2"],
     ["-1.51", "-1.501", "2.26", "2.251", "-2", "3", "2.3"]),
    ({"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 10.5}, ["0.11", "0.101", "0.2", "10.4", "10.49", "10", "9.9", "1.0"],
     ["0.1", "0.10", "10.5", "10.50", "10.51", "0", "0.09", "11", "01.5", "00.5"]),
    ({"type": "number", "minimum": 99.5}, ["99.5", "99.51", "100", "1000.25", "123456"], ["99.4", "99", "9.95", "0"]),
    ({"type": "number", "maximum": -0.001}, ["-0.001", "-1", "-0.0011", "-12.5"], ["0", "-0.0009", "0.001", "-0"]),
    ({"type": "integer", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5}, ["1", "2"], ["0", "3"]),
    ({"type": "number", "minimum": 1e-9, "maximum": 1000000000000}, ["0.000000001", "1000000", "999999999.5"], ["0", "0.0000000001"]),
    ({"type": "number", "minimum": 1e-9, "maximum": 12345678.3}, ["12345678.3", "12345678.299999999"], ["12345678.300000001", "12345678.300000002"]),
    ({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 10}, ["1.000000000001", "9.9999999999999"],
     ["1.0000000000000001", "9.9999999999999999", "1", "10"]),
    ({"type": "number", "exclusiveMinimum": 698357836303.326}, ["698357836303.327", "698357836304"], ["698357836303.3261", "698357836303.326"]),
    ({"type": "number", "minimum": -1e308, "maximum": 1e308}, ["0", "-1.5", "999999999999999999"], ["1e5"]),
    ({"type": "integer", "minimum": -1e19, "exclusiveMaximum": 1e19}, ["999999999999999999", "-999999999999999999"], ["1.0"]),
    ({"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1e19}]}, ["null"], ["999999999999999999"]),
    ({"anyOf": [{"type": "null"}, {"type": "number", "maximum": -1e300}]}, ["null"], ["-999999999999999999", "-999999999999999999.0"]),
    ({"type": "number", "minimum": -3, "maximum": -1}, ["-3", "-1", "-2.5", "-1.5"], ["-3.1", "-0.5", "0"]),
    ({"type": "number", "minimum": -2, "maximum": 2}, ["-1.5", "1.9", "-0.5", "0.5", "2"], ["2.5", "-2.1"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({"type": "string", "nullable": True}, ['"x"', "null"], ["1"]),
    ({"type": "boolean"}, ["true", "false"], ["0"]),
    ({"enum": ["a", 1, None, {"x": [1]}]}, ['"a"', "1", "null", '{"x":[1]}'], ['"b"', "2"]),
    ({"const": "fixed"}, ['"fixed"'], ['"other"']),
    ({"enum": ["a", 1], "type": "integer"}, ["1"], ['"a"']),
    ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]"], ["[1,]", "[\"a\"]", "[,]"]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, ["[1,2]", "[1,2,3]"], ["[1]", "[1,2,3,4]", "[]"]),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 500}, ["[" + ",".join(["null"] * 500) + "]"],
     ["[" + ",".join(["null"] * 501) + "]"]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 1},
     ["[1]", '[1,"a"]'], ["[]", '["a"]', '[1,"a",2]']),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
     ["[1,true]", "[1,true,false]"], ["[1]", "[1,2]", "[1,true,true,true]"]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, ["[1]", "[{},[]]"], ["[]", "[1,2,3]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    (PERSON, ['{"name":"x","age":3}', '{"name": "Ann", "age": 150, "tags": ["a", "c\\"d"]}', '{\n  "name": "x",\n  "age": 1\n}'],
     ['{"name":"x"}', '{"name":"","age":3}', '{"name":"x","age":151}', '{"name":"x","age":1,"more":1}', '{"age":3,"name":"x"}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}},
     ["{}", '{"a":1}', '{"b":1}', '{"c":1}', '{"a":1,"c":2}', '{"a":1,"b":2,"c":3}'], ['{"c":1,"a":2}', '{,"a":1}', '{"a":1,}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}, "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":1}', '{"b":1,"c":1}'], ["{}", '{"a":1}', '{"a":1,"c":1}']),
    ({"type": "object", "properties": {"ab": {"type": "integer"}, "abc": {"type": "integer"}, "é": {"type": "null"}},
      "additionalProperties": {"type": "boolean"}},
     ['{"ab":1,"x":true}', '{"a":true}', '{"abcd":true}', '{"":false}', '{"ab":1,"b":true,"c":false}', '{"è":true}'],
     ['{"ab":true}', '{"abc":true}', '{"x":1}', '{"é":true}']),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a":1,"b":2}'], ['{"a":"x"}']),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
    ({"type": "object", "required": ["x"]}, ['{"x":null}'], ["{}"]),
    ({"properties": {"a": {"type": "integer"}}}, ['{"a":1}'], ["1x"]),
    (TREE, ['{"v":1}', '{"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]}'], ['{"v":1,"kids":[{}]}', '{"kids":[]}']),
    ({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}, ["[]", "[[],[[]]]"], ["[1]", "[[],[],[]]"]),
    ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}, ["1", "[1]"], ['"a"', '["a"]']),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"]),
    ({"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "integer"}}, "required": ["k", "x"]},
                {"type": "object", "properties": {"k": {"const": "b"}, "y": {"type": "string"}}, "required": ["k", "y"]}]},
     ['{"k":"a","x":1}', '{"k":"b","y":""}'], ['{"k":"a","y":""}']),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {"const": 1}}, "required": ["b"]}]},
     ['{"a":1}', '{"a":1,"b":1}', '{"b":1}'], ["{}"]),
    ({"allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"type": "integer"}}, "required": ["y"]}],
      "$defs": {"a": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]}}},
     ['{"x":"","y":1}'], ['{"x":""}', '{"y":1}']),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 10}, {"minimum": 5}]}, ["5", "10"], ["4", "11"]),
    ({"$ref": "#/$defs/n", "description": "a number", "$defs": {"n": {"type": "integer"}}}, ["1"], ['"a"']),
    ({"allOf": [{"type": "number"}, {"type": "integer"}]}, ["1"], ["1.5"]),
    ({"allOf": [{"type": ["integer", "string", "null"]}, {"type": ["string", "boolean", "null"]}]}, ['"x"', "null"], ["1", "true"]),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}, {"enum": [3, 2]}]}, ["2", "3"], ["1", "4"]),
    ({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}}}]},
     ['{"a":3}'], ['{"a":2}', "{}", '{"a":"x"}']),
    ({"allOf": [{"type": "object", "required": ["a"]}, {"required": ["b"], "properties": {"a": {"const": 1}, "b": {"const": 2}}}]},
     ['{"a":1,"b":2}'], ['{"a":1}', '{"b":2}']),
    ({"allOf": [{"type": "object", "additionalProperties": True}, {"additionalProperties": False, "properties": {"a": {"const": 1}}}]},
     ['{"a":1}', "{}"], ['{"b":1}']),
    ({"allOf": [{"additionalProperties": False, "properties": {"a": {"const": 1}}}, {"type": "object", "additionalProperties": True}]},
     ['{"a":1}', "{}"], ['{"b":1}']),
    ({"allOf": [{"type": "string", "minLength": 1, "maxLength": 5}, {"minLength": 3, "maxLength": 9}]}, ['"abc"', '"abcde"'],
     ['"ab"', '"abcdef"']),
    ({"allOf": [{"type": "array", "minItems": 2, "maxItems": 9}, {"minItems": 1, "maxItems": 3}]}, ["[1,2]", "[1,2,3]"], ["[1]", "[1,2,3,4]"]),
    ({"allOf": [{"type": "integer", "exclusiveMinimum": 3}, {"exclusiveMinimum": 5, "exclusiveMaximum": 9}, {"exclusiveMaximum": 8}]},
     ["6", "7"], ["5", "8"]),
    ({"enum": [True, 1.5, [1], {"a": 1}, "s", None], "type": ["boolean", "number"]}, ["true", "1.5"], ["[1]", '{"a":1}', '"s"', "null"]),
    ({"enum": [True, 1.5, [1], {"a": 1}, "s", None], "type": ["array", "object", "null"]}, ["[1]", '{"a":1}', "null"], ["true", "1.5", '"s"']),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    ({"type": "object", "properties": {"a": {"$ref": "#/prefixItems/1"}}, "required": ["a"], "prefixItems": [{}, {"type": "integer"}]},
     ['{"a":1}'], ['{"a":"x"}']),
    ({"type": "object", "properties": {"a~b": {"$ref": "#/properties/c~1d"}, "c/d": {"type": "integer"}}, "required": ["a~b"]},
     ['{"a~b":1}'], ['{"a~b":"x"}']),
]

# (schema, words of the message)
REFUSED = [
    ({"type": "object", "patternProperties": {}}, ["patternProperties", "#/patternProperties"]),
    ({"type": "object", "properties": {"a": {"not": {}}}}, ["not", "#/properties/a/not"]),
    ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, ["uniqueItems", "#/items/uniqueItems"]),
    ({"type": "object", "properties": {"x/y": {"if": {}}}}, ["if", "#/properties/x~1y/if"]),
    ({"$defs": {"a": {"minProperties": 1}}, "$ref": "#/$defs/a"}, ["minProperties", "#/$defs/a/minProperties"]),
    ({"type": "number", "multipleOf": 0.1}, ["multipleOf"]),
    ({"type": "number", "minimum": 0.12345678901}, ["minimum", "9 digits"]),
    ({"type": "number", "minimum": 0.5, "maximum": 0.4}, ["no text"]),
    ({"type": "string", "format": "color"}, ["format"]),
    ({"type": "string", "pattern": "^a{2,10}$", "maxLength": 3}, ["maxLength", "longer"]),
    ({"type": "string", "pattern": "^a*$", "minLength": 1}, ["minLength", "shorter"]),
    ({"type": "string", "pattern": "(a", "maxLength": 3}, ["not closed"]),
    ({"type": "string", "format": "uri", "maxLength": 20}, ["maxLength", "longer"]),
    ({"type": "string", "format": "email", "minLength": 20}, ["minLength", "shorter"]),
    ({"type": "string", "pattern": "a", "format": "date"}, ["format"]),
    ({"type": "string", "pattern": "(?=a)b"}, ["lookaround"]),
    ({"type": "string", "pattern": "(a"}, ["not closed"]),
    ({"type": "strange"}, ["#/type"]),
    ({"type": 3}, ["#/type"]),
    ({"$ref": "#/nowhere"}, ["leads nowhere"]),
    ({"$ref": "http://x/y"}, ["$ref"]),
    ({"$ref": "#"}, ["no text"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf", "anyOf"]),
    ({"allOf": [{"type": "integer"}, {"type": "string"}]}, ["type"]),
    ({"enum": []}, ["enum"]),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, ["required"]),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ["no text"]),
    ({"type": "string", "maxLength": 1000000}, ["maxLength"]),
    ({"minLength": -1}, ["minLength"]),
    (False, ["no text"]),
    ("x", ["an object"]),
    ({"type": "object", "properties": 3}, ["#/properties"]),
    ({"type": "object", "required": 3}, ["#/required"]),
    ({"type": "object", "required": [3]}, ["#/required"]),
    ({"anyOf": []}, ["#/anyOf"]),
    ({"allOf": 3}, ["#/allOf"]),
    ({"allOf": [3]}, ["allOf"]),
    ({"$ref": 3}, ["#/$ref"]),
    ({"type": "string", "pattern": 3}, ["#/pattern"]),
    ({"type": "string", "format": 3}, ["#/format"]),
    ({"type": "string", "format": "date", "pattern": "a"}, ["#/format", "pattern"]),
    ({"type": "integer", "minimum": "x"}, ["#/minimum"]),
    ({"type": "array", "prefixItems": 3}, ["#/prefixItems"]),
    ({"type": "array", "prefixItems": [{}] * 257}, ["#/prefixItems", "256"]),
    ({"type": "array", "items": [{}], "prefixItems": [{}]}, ["#/items"]),
    ({"type": "array", "additionalItems": False}, ["#/additionalItems"]),
    ({"allOf": [{"type": "string", "pattern": "a"}, {"pattern": "b"}]}, ["pattern"]),
    ({"allOf": [{"additionalProperties": False, "properties": {"a": {}}}, {"properties": {"b": {}}}]}, ["additionalProperties"]),
    ({"const": 1, "minimum": 0}, ["#/minimum", "const"]),
    ({"type": "object", "properties": {"x" * 257: {}}, "additionalProperties": {}}, ["#/additionalProperties", "256"]),
]

# What jsonschema's newest draft does not know.
OLD_SCHEMAS = [
    ({"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}, ["[]", "[1]", '[1,"a"]'],
     ['["a"]', '[1,"a",2]']),
    ({"type": "array", "items": [{"type": "integer"}], "additionalItems": {"type": "null"}}, ["[1,null]"], ["[1,2]", "[null]"]),
]

REGEXES = ["a*b+c?", "(ab|cd){2,4}x", "[a-f0-9]{8}", "[^a-z\\s]+", "\\d{3}-\\w+\\.[\\w-]*", "(a|b)*abb", "x{0,3}y{2}", "é+|[α-ω]+ñ",
           "^\\s*(yes|no)\\s*$", "[\\]\\[^-]{1,2}", "a{2,}b*?", "(?:(?P<n>ab)?c)+", "[+-]?\\d+(\\.\\d+)?([eE][+-]?\\d+)?", "", "a||b",
           "\\x41\\u00e9\\t", "[\\d\\-x]+", "(((a?){5}){5})", "\\$\\{[^{}]*\\}", "[^\\x00-\\x7f]+",
           "a.c|b.{2}", "(.|\\n)[ab]", "a{,3}b", "[\\b\\t-]+", "\\D\\W?\\S", "[^\\d\\w]"]
# (expression, texts, others), where Python's re says otherwise.
OTHER_REGEXES = [(".", ["a", "é", "\t"], ["\n", "\r", "\u2028", "\u2029", ""]), ("\\x{e9}\\u{1f41f}", ["é🐟"], ["é"]),
                 ("\\U0001F41F", ["🐟"], [""])]
BAD_REGEXES = ["(", "a)", "[a", "a{3,2}", "*a", "a**", "\\b", "(?=a)", "(?!a)", "(?<=a)", "\\1", "a^b", "\\p{L}", "a{999999}", "[z-a]", "\\",
               "\\xg0", "\\x{}", "\\u{110000}", "\\ud800", "[]", "[\\d-z]", "a{x}", "a{1", "\\é", "(?P<n", "(" * 300]

GRAMMARS = [
    ('root ::= "SELECT " col " FROM " tab\ncol ::= "a" | "b"  # comment\ntab ::= [t-v] [0-9]{1,2}',
     ["SELECT a FROM t1", "SELECT b FROM v22"], ["SELECT c FROM t1", "SELECT a FROM t123"]),
    ('root  ::= e\ne ::= t (("+" | "-") t)*\nt ::= f ("*" f)*\nf ::= [0-9]+ | "(" e ")"', ["1", "(1+2)*3-(4)"], ["1+", "()", "(1"]),
    ('root ::= "a" root "b" | ""', ["", "ab", "aaabbb"], ["aab", "ba", "abb"]),
    ('root ::= ("a" | "b") root ("a" | "b") | "c"', ["c", "abcba", "aacbb"], ["ab", "acbb"]),
    ('root ::= x y? \'z\'\nx ::= "é" | .\ny ::=\n  "1"\n  | "2"', ["éz", "q1z", "🐟2z"], ["z", "q3z"]),
    ('root ::= a a a\na ::= b?\nb ::= "x"', ["", "x", "xxx"], ["xxxx"]),
    ('root ::= list\nlist ::= [a-z] ("," list)?', ["a", "a,b,c"], ["a,", ",a"]),
    ('root ::= "\\x41\\n\\"" [\\]a-c]*', ["A\n\"]abc"], ["A\n\"d"]),
]
BAD_GRAMMARS = ['root ::= root "a" | "b"', 'a ::= "x"', 'root ::= b', 'root ::= "x', 'root ::= ("a"', 'root = "a"', 'root ::= "a"\nroot ::= "b"',
                'root ::= a "x"\na ::= b\nb ::= a?', 'root ::= "a" root', 'root ::= [', 'root ::= "\\q"']


class Driver:
    def __init__(self, path):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **row):
        self.p.stdin.write(json.dumps(row) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            sys.exit(f"the driver died at {row}")
        answer = json.loads(line)
        if "stuck" in answer:
            sys.exit(f"no way on from {answer['stuck']!r} in {row}")
        return answer


def need(condition, *what):
    if not condition:
        sys.exit(" ".join(str(w) for w in what))


def accepted(driver, good, bad, made_by, **row):
    answer = driver.ask(accept=good + bad, **row)
    need("error" not in answer, row, answer.get("error"))
    for text, got in zip(good + bad, answer["accept"]):
        need(got == (text in good), row["kind"], row["text"], "accepts" if got else "refuses", repr(text))
    for text in answer["made"]:
        need(made_by(text), row["kind"], row["text"], "made", repr(text))
    return len(answer["made"])


def schemas(driver, args):
    made = 0
    for number, (schema, good, bad) in enumerate(SCHEMAS):
        judge = jsonschema.Draft202012Validator(schema) if schema is not True else None
        plain = json.loads(json.dumps(schema).replace('"nullable": true', '"x": 0')) if schema is not True else None

        def valid(text):
            value = json.loads(text, parse_constant=lambda c: 1 / 0)
            if '"nullable"' in json.dumps(schema) and value is None:
                return True
            return judge is None or jsonschema.Draft202012Validator(plain).is_valid(value)

        for text in good:
            need(valid(text), "the table is wrong:", schema, text)
        for space in (None, "", "[ ]?"):
            made += accepted(driver, [t for t in good if space is None], bad, valid, kind="json_schema", text=json.dumps(schema),
                             whitespace=space, walks=args.walks, seed=args.seed + number)
    made += accepted(driver, ["{}", '{"a":[1,{"b":null}]}'], ["[]", "1", '{"a":1'], lambda t: isinstance(json.loads(t), dict),
                     kind="json_object", text="", walks=10 * args.walks, seed=args.seed)
    return made


def other_schemas(driver, args):
    for schema, good, bad in OLD_SCHEMAS:
        accepted(driver, good, bad, lambda t: True, kind="json_schema", text=json.dumps(schema), walks=args.walks, seed=1)
    for schema, words in REFUSED:
        message = driver.ask(kind="json_schema", text=json.dumps(schema)).get("error", "")
        need(all(w in message for w in words), schema, "is refused with", repr(message))


def random_text(rng, alphabet):
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 12)))


def regexes(driver, args):
    rng = random.Random(args.seed)
    made = 0
    for number, regex in enumerate(REGEXES):
        judge = re.compile(regex.replace("(?P<n>", "("), re.ASCII)
        texts = [random_text(rng, "ab") for _ in range(60)] + [random_text(rng, "abcdxy019-+.eE éαñ[]^\tA\n") for _ in range(200)]
        good = [t for t in texts if judge.fullmatch(t)]
        bad = [t for t in texts if not judge.fullmatch(t)]
        made += accepted(driver, good, bad, judge.fullmatch, kind="regex", text=regex, walks=args.walks, seed=number)
    for regex, good, bad in OTHER_REGEXES:
        accepted(driver, good, bad, lambda t: t not in bad, kind="regex", text=regex, walks=args.walks, seed=1)
    for regex in BAD_REGEXES:
        need("error" in driver.ask(kind="regex", text=regex), regex, "is not refused")
    return made


def others(driver, args):
    for number, (grammar, good, bad) in enumerate(GRAMMARS):
        accepted(driver, good, bad, lambda t: True, kind="ebnf", text=grammar, walks=args.walks, seed=number)
    for grammar in BAD_GRAMMARS:
        need("error" in driver.ask(kind="ebnf", text=grammar), grammar, "is not refused")
    words = ["yes", "no", "not", "ja \"nein\"", "été"]
    accepted(driver, words, ["", "n", "nott", "ja"], words.__contains__, kind="choice", text=json.dumps(words), walks=20, seed=1)
    accepted(driver, ["{}", "<think>a </thin</think>{}", "<think>\n</think>\n\n{}"], ["x", "<think></think>x", "<think>not closed"],
             lambda t: True, kind="json_object", text="", think_open="<think>", think_close="</think>", walks=20, seed=2)
    accepted(driver, ["a</think>{}", "</think>\n\n{}"], ["</think>x"], lambda t: True, kind="json_object", text="",
             think_close="</think>", walks=20, seed=3)


CALL = {"begin": '<tool_call>\n{"name": "f", "arguments": ', "end": "}\n</tool_call>",
        "schema": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}, "required": ["x"]}}
FUNCTION = {**CALL, "style": "function", "begin": "<tool_call>\n<function=f>\n", "end": "</function>\n</tool_call>"}
ARGKEY = {**CALL, "style": "argkey", "begin": "<tool_call>f\n", "end": "</tool_call>"}


def tags(driver, args):
    def case(structure, good, bad, **more):
        spec = {"structures": [structure], "triggers": ["<tool_call>"], "markers": ["</tool_call>"], **more}
        accepted(driver, good, bad, lambda t: True, kind="tags", text=json.dumps(spec), walks=args.walks, seed=1)

    one = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    case(CALL, ["", "no call", f"so: {one}", f"{one}\n{one} and {one}.", "<tool_cal <<tool_ca"], ["<tool_call>", f"{one}<tool_call>x"])
    case(CALL, [f"{one} text"], [one + one], parallel=False)
    case(CALL, [one, one + "\n" + one], ["", f"x{one}", f"{one}x"], required=True)
    case(CALL, [one], [one + one], required=True, parallel=False)
    head = "<tool_call>\n<function=f>\n<parameter=x>\n12\n</parameter>\n"
    case(FUNCTION, [head + "</function>\n</tool_call>", head + "<parameter=s>\nany < </param text\n\n</parameter>\n</function>\n</tool_call>"],
         [head.replace("12", "1.5") + "</function>\n</tool_call>", "<tool_call>\n<function=f>\n</function>\n</tool_call>"], required=True)
    head = "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>12</arg_value>\n"
    case(ARGKEY, [head + "</tool_call>", head + "<arg_key>s</arg_key>\n<arg_value>a<b</arg_value>\n</tool_call>"],
         [head.replace("12", "a") + "</tool_call>"], required=True)
    # strings with bounds have no < in them; what may be a string is any text
    for style, name in ((FUNCTION, "<parameter=%s>\n%s\n</parameter>\n"), (ARGKEY, "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n")):
        def texts(*values, style=style, name=name):
            return [style["begin"] + name % ("s", v) + style["end"] for v in values]
        for schema, good, bad in (
                ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "abcd", "é\u20ac", "1 ;~"], ["a", "abcde", "a<b"]),
                ({"type": "string", "minLength": 3}, ["abc", "a" * 500], ["ab"]),
                ({"type": "string", "maxLength": 2}, ["", "ab"], ["abc"]),
                ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["1", "x<y"], []),
                ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["x"]),
                ({"anyOf": [{"type": "integer"}, {}]}, ["x"], []),
                ({"enum": ["a b", 3, None]}, ["a b", "3", "null"], ["a", '"a b"', "4"]),
                ({"const": "x"}, ["x"], ["y", '"x"'])):
            one = {**style, "schema": {"type": "object", "properties": {"s": schema}, "required": ["s"]}}
            case(one, texts(*good), texts(*bad), required=True)
        for schema, words in (({"type": "string", "pattern": "a"}, ["pattern"]), ({"format": "date"}, ["format"]),
                              ({"type": "string", "minLength": "x"}, ["minLength"]), ({"type": "string", "maxLength": 1.5}, ["maxLength"]),
                              ({"type": "string", "minLength": 3, "maxLength": 2}, ["maxLength"]),
                              ({"type": "string", "maxLength": 100001}, ["maxLength"])):
            one = {**style, "schema": {"type": "object", "properties": {"s": schema}, "required": ["s"]}}
            message = driver.ask(kind="tags", text=json.dumps({"structures": [one], "triggers": ["<tool_call>"]})).get("error", "")
            need(all(w in message for w in words), one, "says", repr(message))
        for key in ("", "a<b", "a>b", "a\nb"):
            one = {**style, "schema": {"type": "object", "properties": {key: {"type": "string"}}}}
            need("name" in driver.ask(kind="tags", text=json.dumps({"structures": [one], "triggers": ["<tool_call>"]})).get("error", ""),
                 one, "is not refused")
    for spec in ({}, {"structures": [], "triggers": ["<a"]}, {"structures": [CALL], "triggers": ["<x"]},
                 {"structures": [CALL], "triggers": ["<t<"]}, {"structures": [{"begin": "<a"}], "triggers": ["<a"]}, []):
        need("error" in driver.ask(kind="tags", text=json.dumps(spec)), spec, "is not refused")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--walks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    driver = Driver(args.driver)
    made = regexes(driver, args)
    others(driver, args)
    tags(driver, args)
    other_schemas(driver, args)
    if jsonschema is None:
        print("jsonschema is not installed: schemas are not compared")
        return 77
    made += schemas(driver, args)
    print(f"{len(SCHEMAS)} schemas, {len(REGEXES)} expressions: {made} texts made, all valid")
    driver.p.stdin.close()
    return driver.p.wait()


if __name__ == "__main__":
    sys.exit(main())
