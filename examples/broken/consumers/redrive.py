"""Redrives dead letters: moves all messages of STREAM-dead back to STREAM.

Usage: python3 redrive.py REDIS_PORT STREAM
"""

import sys

from base import Redis

if len(sys.argv) != 3:
    sys.exit(__doc__)
redis, stream = Redis(int(sys.argv[1])), sys.argv[2]
for entry, fields in redis("XRANGE", f"{stream}-dead", "-", "+"):
    redis("XADD", stream, "*", *fields)
    redis("XDEL", f"{stream}-dead", entry)
