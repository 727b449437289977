"""Powertools' idempotency utility with Redis, around the payment function, in FastAPI.

The key is caller, header and path. The context, which on AWS tells the time that is left, leaves one second: that is
the lease. Payload validation is off: with Redis it refuses every duplicate, because the record loses its payload's hash
when the function is done.
"""

import base64
import json
import os

import redis
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

import payments


class Context:
    def get_remaining_time_in_millis(self):
        return 1000


store = CachePersistenceLayer(client=redis.Redis.from_url(os.environ["REDIS_URL"], decode_responses=True))
config = IdempotencyConfig(event_key_jmespath="[caller, key, path]")
config.register_lambda_context(Context())
app = FastAPI()


@idempotent_function(data_keyword_argument="event", config=config, persistence_store=store)
def charge(event):
    return payments.pay(event["body"])


@app.get("/ledger")
def ledger():
    return payments.payments()


@app.post("/v1/payments")
@app.post("/v1/refunds")
async def pay(request: Request):
    if "authorization" not in request.headers:
        return JSONResponse({"error": "authentication required"}, 401)
    if request.headers.get("content-type") != "application/json":
        return JSONResponse({"error": "JSON alone"}, 415)
    if not (key := request.headers.get("idempotency-key")):
        return JSONResponse({"error": "a key is needed"}, 400)
    claims = request.headers["authorization"].split(".")[1]
    caller = json.loads(base64.urlsafe_b64decode(claims + "=="))["sub"]
    event = {"caller": caller, "key": key, "path": request.url.path, "body": await request.json()}
    try:
        answer = await run_in_threadpool(charge, event=event)
    except payments.Refused as refused:
        return JSONResponse({"error": str(refused)}, refused.status)
    except IdempotencyAlreadyInProgressError:
        return JSONResponse({"error": "in progress"}, 409, {"retry-after": "1"})
    # No cookie: this code cannot recognise a replay, so it would set the cookie again, which would be our mistake.
    return JSONResponse(answer, 201, {"location": payments.headers(answer)["location"]})


payments.serve(app)
