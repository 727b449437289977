"""A payments service that is exactly-once behind Refrain: FastAPI and psycopg, and one INSERT.

    DATABASE_URL=postgres://app@localhost/app uvicorn app:app --port 3000

The table comes from `refrain migrate --receipts --print`; `refrain.toml` is next to this file.
"""

import json
import os
import signal
import time

import psycopg
from fastapi import FastAPI, Request, Response

app = FastAPI()
DATABASE_URL = os.environ["DATABASE_URL"]


@app.post("/v1/payments")
def pay(payment: dict, request: Request) -> Response:
    """A plain `def`: FastAPI runs it in a thread pool, so the driver may block."""
    with psycopg.connect(DATABASE_URL) as db:
        with db.transaction():
            row = db.execute(
                "INSERT INTO payments (customer, amount) VALUES (%s, %s) RETURNING id",
                (payment["customer"], payment["amount"]),
            ).fetchone()
            body = json.dumps({"id": row[0], "amount": payment["amount"]})
            fail(request, "before-commit")
            receipt(db, request, 201, body)
        # Payment and receipt are committed together, or neither.
        fail(request, "after-commit")
        return Response(body, 201, media_type="application/json")


def receipt(db, request: Request, status: int, body: str) -> None:
    """Inserts the receipt. Without Refrain in front there are no headers, and no receipt."""
    record = request.headers.get("refrain-record")
    if record is not None:
        db.execute(
            "INSERT INTO refrain_receipts (record, fence, status, body) VALUES (%s, %s, %s, %s)",
            (record, request.headers["refrain-fence"], status, body),
        )


@app.get("/ledger")
def ledger() -> list:
    with psycopg.connect(DATABASE_URL) as db:
        rows = db.execute("SELECT customer, count(*) FROM payments GROUP BY customer")
        return [{"customer": customer, "payments": count} for customer, count in rows]


def fail(request: Request, moment: str) -> None:
    """Faults that the tests inject; a real service does not have this."""
    match request.headers.get("x-fail"):
        case fault if fault == f"die-{moment}":
            os.kill(os.getpid(), signal.SIGKILL)
        case fault if fault == f"hang-{moment}":
            time.sleep(600)
        case fault if fault == f"error-{moment}":
            raise RuntimeError("injected fault")
