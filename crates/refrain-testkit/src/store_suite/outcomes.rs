//! I2: a replayed outcome equals the stored outcome byte for byte.

use refrain::{Outcome, RecordId, Store, Verdict, outcome::Packer};

use super::bench::{Bench, Broken, Checked, claim, completion, expect, id};

pub(super) async fn i2_outcomes_come_back_to_the_byte<S: Store>(bench: &Bench<S>) -> Checked {
    // Starts at 0 to cover the identity that is all zeros.
    for (number, (what, outcome)) in (0..).zip(samples()?) {
        comes_back(bench, number, what, outcome).await?;
    }
    Ok(())
}

pub(super) async fn i2_a_body_that_was_not_kept_stays_so<S: Store>(bench: &Bench<S>) -> Checked {
    let mut packer = Packer::new(201, [("location", &b"/orders/7"[..])]);
    packer.push(b"too long");
    packer.drop_body();
    let outcome = packer.finish([]);
    let read = comes_back(bench, 1, "an outcome without its body", outcome).await?;
    expect("whether the body was kept", read.is_body_kept(), false)?;
    let location = read.headers().next().map(|(_, value)| value.to_vec());
    expect("its location", location, Some(b"/orders/7".to_vec()))
}

async fn comes_back<S: Store>(
    bench: &Bench<S>,
    number: u64,
    what: &str,
    outcome: Outcome,
) -> Checked<Outcome> {
    let ask = claim(number);
    let fence = bench.granted(&ask).await?.fence;
    bench
        .end(ask.id, fence, completion(outcome.clone()))
        .await?;
    let Verdict::Replay(replayed) = bench.send_claim(&claim(number)).await? else {
        return Err(Broken(format!("{what}: expected a replay")));
    };
    same(what, &replayed, &outcome, ask.id)?;
    // The encoded bytes must decode under the record's identity.
    let decoded = Outcome::decode(replayed.encoded().clone(), ask.id)?;
    same(what, &decoded, &outcome, ask.id)?;
    Ok(decoded)
}

fn same(what: &str, got: &Outcome, want: &Outcome, id: RecordId) -> Checked {
    let pairs = |outcome: &Outcome| -> Vec<_> {
        let owned = |(name, value): (&str, bytes::Bytes)| (name.to_owned(), value);
        let headers = outcome.headers().map(owned);
        headers.chain(outcome.trailers().map(owned)).collect()
    };
    expect(&format!("{what}: status"), got.status(), want.status())?;
    expect(
        &format!("{what}: headers, trailers"),
        pairs(got),
        pairs(want),
    )?;
    expect(&format!("{what}: body"), got.body(), want.body())?;
    let (got, want) = (got.clone().sealed(id), want.clone().sealed(id));
    expect(&format!("{what}: bytes"), got.encoded(), want.encoded())
}

fn samples() -> Checked<Vec<(&'static str, Outcome)>> {
    let every_byte: Vec<u8> = (0..=255).collect();
    let large: Vec<u8> = (0..1_u32 << 20).map(|n| (n % 251) as u8).collect();
    let names: Vec<String> = (0..200).map(|n| format!("X-Header-{n}")).collect();
    let mut many = Packer::new(207, names.iter().map(|name| (&**name, &every_byte[..])));
    many.push(b"<multi/>");
    let mut trailed = Packer::new(200, [("te", &b"trailers"[..]), ("te", b"")]);
    trailed.push(b"body");
    let elsewhere = Outcome::new(200, b"sealed").sealed(id(77));
    Ok(vec![
        ("an empty body", Outcome::new(204, b"")),
        ("all 256 byte values", Outcome::new(200, &every_byte)),
        ("1 MiB", Outcome::new(599, large)),
        ("many headers", many.finish([])),
        (
            "trailers",
            trailed.finish([("x-sum", &b"\xff\0"[..]), ("x-end", b"")]),
        ),
        ("sealed for another record", elsewhere),
    ])
}
