// A payments service that is exactly-once behind Refrain: Express and pg, and one INSERT.
//
//   DATABASE_URL=postgres://app@localhost/app PORT=3000 node app.js
//
// The table comes from `refrain migrate --receipts --print`; `refrain.toml` is next to this file.

const express = require("express");
const { Pool } = require("pg");

const app = express();
const pool = new Pool({ connectionString: process.env.DATABASE_URL });
app.use(express.json());

app.post("/v1/payments", async (request, response) => {
  const { customer, amount } = request.body;
  const body = await transaction(async (db) => {
    const { rows } = await db.query(
      "INSERT INTO payments (customer, amount) VALUES ($1, $2) RETURNING id",
      [customer, amount],
    );
    const body = JSON.stringify({ id: Number(rows[0].id), amount });
    await fail(request, "before-commit");
    await receipt(db, request, 201, body);
    return body;
  });
  // Payment and receipt are committed together, or neither.
  await fail(request, "after-commit");
  response.status(201).type("application/json").send(body);
});

// Inserts the receipt. Without Refrain in front there are no headers, and no receipt.
async function receipt(db, request, status, body) {
  const record = request.get("Refrain-Record");
  if (record === undefined) return;
  await db.query(
    "INSERT INTO refrain_receipts (record, fence, status, body) VALUES ($1, $2, $3, $4)",
    [record, request.get("Refrain-Fence"), status, body],
  );
}

async function transaction(work) {
  const db = await pool.connect();
  try {
    await db.query("BEGIN");
    const result = await work(db);
    await db.query("COMMIT");
    db.release();
    return result;
  } catch (error) {
    // Close the connection instead of returning it to the pool, so that the transaction is rolled back.
    db.release(error);
    throw error;
  }
}

app.get("/ledger", async (_, response) => {
  const { rows } = await pool.query("SELECT customer, count(*)::int AS payments FROM payments GROUP BY customer");
  response.json(rows);
});

// Faults that the tests inject; a real service does not have this.
async function fail(request, moment) {
  const fault = request.get("X-Fail");
  if (fault === `die-${moment}`) process.kill(process.pid, "SIGKILL");
  if (fault === `hang-${moment}`) await new Promise(() => {});
  if (fault === `error-${moment}`) throw new Error("injected fault");
}

const server = app.listen(process.env.PORT ?? 3000, "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
