"""One time to live for everything: a claim lasts as long as a stored response.

Seen where `SET key … EX 86400` is used for both "in progress" and "done".
Cost: the process dies during a request, and the client gets "in progress" for a day, although nothing is running.
"""

import base

base.LEASE = 24 * 60 * 60

base.serve(base.Service)
