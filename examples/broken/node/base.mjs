// A correct payments service: the same key with the same request takes effect once.
//
// The broken services next to it change one thing each. Standard library only.
//
// There is one process, so a claim is in its memory, ends with it, and never lapses. Payment and response are one
// line of a journal, written before the response is sent: a crash loses both or neither.

import { createHash } from "node:crypto";
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const WAIT_MS = 2000; // how long a duplicate waits for the first one's answer
const KEY_BYTES_MAX = 255;
const REPLAYED = ["content-type", "location"];

/** A rejection before anything took effect. */
export class Refused extends Error {
  constructor(status, why, headers = {}) {
    super(why);
    this.answer = answer(status, JSON.stringify({ error: why }), headers);
  }
}

export function answer(status, body, headers = {}) {
  return { status, headers: { "content-type": "application/json", ...headers }, body: Buffer.from(body) };
}

export function digest(...parts) {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part).update("\0");
  return hash.digest("hex");
}

/** Canonical JSON: members sorted by name. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical)}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`)}}`;
}

export class Service {
  claims = new Map(); // identity → { fingerprint, ended: a promise }
  records = new Map(); // identity → { fingerprint, answer }
  payments = 0;
  tried = new Set();

  constructor(folder) {
    this.journal = join(folder, "journal");
    const text = existsSync(this.journal) ? readFileSync(this.journal, "utf8") : "";
    // The response of a line that a crash truncated was never sent.
    if (text && !text.endsWith("\n")) appendFileSync(this.journal, "\n");
    for (const line of text.split("\n")) {
      try {
        this.apply(JSON.parse(line));
      } catch {}
    }
  }

  // Key, caller and fingerprint.

  keyOf(request) {
    const keys = request.headersDistinct["idempotency-key"] ?? [];
    if (keys.length !== 1) throw new Refused(400, "exactly one Idempotency-Key is required");
    const key = keys[0].replace(/^"(.*)"$/, "$1");
    if (!/^[\x21-\x7e]+$/.test(key) || key.length > KEY_BYTES_MAX) {
      throw new Refused(400, "the key must be 1 to 255 visible ASCII characters");
    }
    return key;
  }

  /** `Bearer alice.2` is the second credential of alice. */
  callerOf(request) {
    return (request.headers.authorization ?? "").replace("Bearer ", "").split(".")[0];
  }

  identityOf(request) {
    return `${this.callerOf(request)} ${this.keyOf(request)}`;
  }

  fingerprintOf(request) {
    const { pathname, search } = request.place;
    return digest(request.method, pathname, search, this.contentOf(request));
  }

  contentOf(request) {
    return request.isJson ? canonical(orderOf(request)) : request.body;
  }

  // The life of a record.

  async guarded(request) {
    const identity = this.identityOf(request);
    const fingerprint = this.fingerprintOf(request);
    for (;;) {
      const record = this.records.get(identity);
      const claim = this.claims.get(identity);
      if (record) return this.replay(record, fingerprint);
      if (!claim) break;
      this.compare(claim, fingerprint);
      const ended = await Promise.race([claim.ended, sleep(WAIT_MS, "late")]);
      if (ended === "late") throw new Refused(409, "still in flight", { "retry-after": "1" });
    }
    return this.claimed(identity, fingerprint, request);
  }

  /** Lookup and claim are atomic: one thread, and no `await` in between. */
  async claimed(identity, fingerprint, request) {
    let end;
    this.claims.set(identity, { fingerprint, ended: new Promise((resolve) => (end = resolve)) });
    try {
      return await this.run(identity, fingerprint, request);
    } finally {
      this.claims.delete(identity);
      end();
    }
  }

  async run(identity, fingerprint, request) {
    await this.bank(request);
    const paid = this.pay(request);
    this.commit({ identity, fingerprint, answer: paid, payment: this.payments + 1 });
    return paid;
  }

  compare(found, fingerprint) {
    if (found.fingerprint !== fingerprint) throw new Refused(422, "the key was used for another request");
  }

  replay(record, fingerprint) {
    this.compare(record, fingerprint);
    return { ...record.answer, headers: { ...record.answer.headers, "idempotent-replayed": "true" } };
  }

  kept({ status, headers, body }) {
    const names = Object.keys(headers).filter((name) => REPLAYED.includes(name));
    return { status, headers: Object.fromEntries(names.map((name) => [name, headers[name]])), body };
  }

  /** Writes payment and response as one line. */
  commit(entry) {
    const kept = this.kept(entry.answer);
    const line = { ...entry, answer: { ...kept, body: kept.body.toString("base64") } };
    this.write(line);
  }

  write(line) {
    appendFileSync(this.journal, `${JSON.stringify(line)}\n`);
    this.apply(line);
  }

  apply({ identity, fingerprint, answer, payment }) {
    if (payment) this.payments = payment;
    if (answer) this.records.set(identity, { fingerprint, answer: { ...answer, body: Buffer.from(answer.body, "base64") } });
  }

  // The business.

  async bank(request) {
    this.check(request);
    await this.work(request);
  }

  /** Rejects invalid orders; for some orders the first call to the bank fails. */
  check(request) {
    const { amount = 0, reference } = orderOf(request);
    if (amount < 0) throw new Refused(400, "the amount is negative");
    if (amount === 503 && !this.tried.has(reference)) {
      this.tried.add(reference);
      throw new Refused(503, "the bank does not answer");
    }
  }

  /** Sleeps, in small time steps. */
  async work(request) {
    for (let step = 0; step < (orderOf(request).slow ? 60 : 4); step += 1) await sleep(5);
  }

  pay(request) {
    const number = this.payments + 1;
    const headers = { location: `${request.place.pathname}/${number}`, "set-cookie": `session=${number}` };
    if (!request.isJson) return answer(201, request.body, { ...headers, "content-type": "application/octet-stream" });
    return answer(201, `{"id":${number},"order":${request.body}}`, headers);
  }

  // HTTP.

  async answer(request) {
    const { pathname } = request.place;
    if (request.method === "GET" && pathname === "/ledger") return answer(200, `${this.payments}`);
    try {
      if (!this.callerOf(request)) throw new Refused(401, "authentication required");
      if (!["/v1/payments", "/v1/refunds"].includes(pathname)) throw new Refused(404, "not found");
      return await this.guarded(request);
    } catch (error) {
      if (error instanceof Refused) return error.answer;
      throw error;
    }
  }

  async bodyOf(request) {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    return Buffer.concat(chunks);
  }
}

export function orderOf(request) {
  if (!request.isJson) return {};
  try {
    return JSON.parse(request.body);
  } catch {
    throw new Refused(400, "no JSON");
  }
}

/** `SERVICE.mjs PORT FOLDER`: listens on the port, stores everything in the folder. */
export function serve(Kind) {
  const [port, folder] = process.argv.slice(2);
  const service = new Kind(folder);
  const server = createServer(async (request, response) => {
    try {
      request.place = new URL(request.url, "http://localhost");
      request.isJson = request.headers["content-type"] === "application/json";
      request.body = await service.bodyOf(request);
      const { status, headers, body } = await service.answer(request);
      response.writeHead(status, { ...headers, "content-length": body.length }).end(body);
    } catch {
      response.destroy();
    }
  });
  server.listen(Number(port), "127.0.0.1");
}
