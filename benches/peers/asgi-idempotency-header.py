"""asgi-idempotency-header with its Redis backend, added to FastAPI as its README says."""

import os

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware import Middleware
from fastapi.responses import JSONResponse
from idempotency_header_middleware import IdempotencyHeaderMiddleware
from idempotency_header_middleware.backends import RedisBackend
from redis.asyncio import from_url

import payments

backend = RedisBackend(redis=from_url(os.environ["REDIS_URL"], decode_responses=True))
app = FastAPI(middleware=[Middleware(IdempotencyHeaderMiddleware, backend=backend)])


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
    try:
        answer = await run_in_threadpool(payments.pay, await request.json())
    except payments.Refused as refused:
        return JSONResponse({"error": str(refused)}, refused.status)
    return JSONResponse(answer, 201, payments.headers(answer))


payments.serve(app)
