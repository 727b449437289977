# snippet: stamina and a client method
import uuid
import stamina

class Client:
    @stamina.retry(on=httpx.HTTPError, attempts=4)
    def create_transfer(self, body):
        return self.http.post("/transfers", json=body)  # expect: retry-post-without-key

    @stamina.retry(on=httpx.HTTPError, attempts=4)
    def read_transfer(self, id):
        return self.http.get(f"/transfers/{id}")

# snippet: key built from several parts with a timestamp inside
from datetime import datetime
import requests

def _key(user, action):
    stamp = datetime.utcnow().isoformat()
    return ":".join([user.id, action, stamp])

def debit(user, amount):
    headers = {"Idempotency-Key": _key(user, "debit")}  # expect: key-from-clock
    return requests.post(LEDGER + "/debits", json={"amount": amount}, headers=headers)

# snippet: kwargs from the caller
import stripe

class Charger:
    def charge(self, amount, **kwargs):
        return stripe.Charge.create(amount=amount, currency="usd", **kwargs)

# snippet: publish after the with block
def approve(session, producer, loan):
    with session.begin():
        loan.state = "approved"
        session.add(loan)
    producer.send("loans", loan.to_bytes())
