// The payments service that all peers in JavaScript guard; without a guard it is the upstream of our own proxy.

const fs = require("node:fs");
const path = require("node:path");
const express = require("express");
const { setTimeout: sleep } = require("node:timers/promises");

const [port, folder] = process.argv.slice(2);
const ledger = path.join(folder, "ledger");
const tried = new Set();

const payments = () => (fs.existsSync(ledger) ? fs.readFileSync(ledger, "utf8").split("\n").length - 1 : 0);

async function pay(request, response) {
  const { amount = 0, slow, reference } = request.body;
  if (amount < 0) return response.status(400).json({ error: "the amount is negative" });
  if (amount === 503 && !tried.has(reference)) {
    tried.add(reference);
    return response.status(503).json({ error: "the bank does not answer" });
  }
  await sleep(slow ? 300 : 20);
  fs.appendFileSync(ledger, "paid\n");
  const id = payments();
  response.set("location", `/v1/payments/${id}`).set("set-cookie", `session=${id}`);
  return response.status(201).json({ id, order: request.body });
}

function caller(request, response, next) {
  if (!request.get("authorization")) return response.status(401).json({ error: "authentication required" });
  next();
}

function onlyJson(request, response, next) {
  if (!request.is("application/json")) return response.status(415).json({ error: "JSON alone" });
  next();
}

/** Serves it with `guard` in front of the handler, and `handler` around it. */
exports.serve = (guard, handler = (pay) => pay) => {
  const app = express();
  app.get("/ledger", (_, response) => response.json(payments()));
  app.use(caller, express.json({ limit: "4mb" }), onlyJson);
  if (guard) app.post("*", guard);
  app.post(["/v1/payments", "/v1/refunds"], handler(pay));
  app.listen(Number(port), "127.0.0.1");
};

if (require.main === module) exports.serve();
