"""One time to live for everything: a claim stands for as long as an answer is kept.

Seen wherever `SET key … EX 86400` is all there is: the same day for "in progress" and for "done".
Cost: the process dies in mid-request, and the client is told "in progress" until tomorrow, with nobody in progress.
"""

import base

base.LEASE = 24 * 60 * 60

base.serve(base.Service)
