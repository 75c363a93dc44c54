#!/usr/bin/env python3
"""The short form of storm.py: 60 clients for six seconds, then SIGTERM under load. Times are bounded only loosely,
for CI machines are busy."""
import sys

from storm import storm_main

if __name__ == "__main__":
    sys.exit(storm_main(["--streams", "60", "--seconds", "6", "--health-ms", "1000", "--rss-percent", "0"]) or
             storm_main(["--streams", "40", "--seconds", "30", "--term", "2"]))
