"""Nothing is wrong."""

from base import Consumer, main

main(Consumer)
