"""The mark has no consumer's name in it: the second subscriber takes the message for a duplicate.

Seen where one table of handled ids serves all endpoints.
"""

from base import Consumer, main


class NoConsumerName(Consumer):
    def mark(self, id):
        return f"mark:{self.stream}:{id}"


main(NoConsumerName)
