# snippet: sqlalchemy session commits behind a celery delay
from app.tasks import send_receipt


def complete(session, order_id):
    order = session.get(Order, order_id)
    with session.begin_nested():
        order.state = "complete"
        send_receipt.delay(order_id)  # expect: publish-in-transaction
    session.commit()

# snippet: kafka-python with auto commit
from kafka import KafkaConsumer


def run(topic):
    consumer = KafkaConsumer(topic, group_id="billing", enable_auto_commit=True)  # expect: ack-before-handle
    for message in consumer:
        bill(message.value)

# snippet: dynamodb conditional write as a claim
import boto3
from botocore.exceptions import ClientError

table = boto3.resource("dynamodb").Table("requests")


def handle_message(message):
    try:
        table.put_item(
            Item={"pk": message["id"], "state": "begun"},
            ConditionExpression="attribute_not_exists(pk)",
        )
    except ClientError as error:
        if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
            return finish_or_wait(message)
        raise
    charge(message)
    table.update_item(Key={"pk": message["id"]}, UpdateExpression="SET #s = :d")

# snippet: backoff decorator with a key made outside
import uuid

import backoff
import httpx


@backoff.on_exception(backoff.expo, httpx.TransportError, max_tries=5)
def _send(client, body, key):
    return client.post("/payments", json=body, headers={"Idempotency-Key": key})


def pay(client, intent):
    return _send(client, {"cents": intent.cents}, intent.key)

# snippet: key with a date and random characters
import random
import string
from datetime import datetime

import requests


def make_reference():
    stamp = datetime.now().strftime("%Y%m%d%H%M%S%f")
    return stamp + "".join(random.choices(string.ascii_letters, k=4))


def pay(invoice):
    return requests.post(
        PAY_URL,
        json=invoice.body(),
        headers={"Idempotency-Key": make_reference()},  # expect: key-from-clock
    )
