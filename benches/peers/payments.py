"""The payments service that the peers in Python guard."""

import os
import sys
import threading
import time

FOLDER = sys.argv[2]
LEDGER = os.path.join(FOLDER, "ledger")
LOCK, TRIED = threading.Lock(), set()


class Refused(Exception):
    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


def payments():
    with LOCK:
        return len(open(LEDGER).readlines()) if os.path.exists(LEDGER) else 0


def check(order):
    amount, reference = order.get("amount", 0), order.get("reference")
    if amount < 0:
        raise Refused(400, "the amount is negative")
    if amount == 503 and reference not in TRIED:
        TRIED.add(reference)
        raise Refused(503, "the bank does not answer")


def moment(order):
    return 0.3 if order.get("slow") else 0.02


def paid(order):
    with LOCK, open(LEDGER, "a") as ledger:
        ledger.write("paid\n")
    number = payments()
    return {"id": number, "order": order}


def pay(order):
    check(order)
    time.sleep(moment(order))
    return paid(order)


def headers(answer):
    number = answer["id"]
    return {"location": f"/v1/payments/{number}", "set-cookie": f"session={number}"}


def serve(app):
    import uvicorn

    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
