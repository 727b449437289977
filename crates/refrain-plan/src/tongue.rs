//! Translates German, French, Spanish and Italian names, and banking abbreviations, to English.
//!
//! Classification only knows English words.

use std::{collections::HashMap, sync::LazyLock};

use crate::text::words;

/// English words and their translations and abbreviations. Lower case, singular; most umlauts are spelled out.
#[rustfmt::skip]
const MEANINGS: &[(&str, &[&str])] = &[
    ("payment", &["zahlung", "bezahlung", "paiement", "pago", "pagamento", "reglement"]),
    ("pay", &["bezahlen", "zahlen", "payer", "pagar", "pagare"]),
    ("refund", &["erstattung", "rueckerstattung", "remboursement", "rembourser", "reembolso", "reembolsar", "rimborso", "erstatten"]),
    ("transfer", &["ueberweisung", "überweisung", "virement", "transferencia", "bonifico"]),
    ("directdebit", &["lastschrift", "prelevement", "domiciliacion"]),
    ("standingorder", &["dauerauftrag"]),
    ("deposit", &["einzahlung", "deposito", "depot"]),
    ("withdrawal", &["auszahlung", "retrait", "retiro", "prelievo"]),
    ("donation", &["spende", "don", "donacion", "donazione"]),
    ("invoice", &["rechnung", "facture", "factura", "fattura"]),
    ("order", &["bestellung", "auftrag", "auftraege", "commande", "pedido", "ordine"]),
    ("booking", &["buchung", "reservierung", "reserva", "prenotazione"]),
    ("customer", &["kunde", "client", "cliente"]),
    ("account", &["konto", "konten", "compte", "cuenta", "conto"]),
    ("card", &["karte", "carte", "tarjeta", "carta"]),
    ("amount", &["betrag", "montant", "importe", "importo", "monto", "summe"]),
    ("currency", &["waehrung", "währung", "devise", "moneda", "divisa", "valuta"]),
    ("receiver", &["empfaenger", "empfänger", "destinataire", "destinatario"]),
    ("beneficiary", &["beneficiaire", "beneficiario", "beguenstigter"]),
    ("token", &["jeton"]),
    ("status", &["statut", "estado", "zustand", "etat", "stato"]),
    ("event", &["ereignis", "ereignisse", "evenement", "evento"]),
    ("notification", &["benachrichtigung", "meldung", "notificacion", "notifica"]),
    ("callback", &["rueckruf", "rappel"]),
    ("note", &["notiz", "nota"]),
    ("comment", &["kommentar", "commentaire", "comentario", "commento"]),
    ("page", &["seite", "pagina"]),
    ("search", &["suche", "suchen", "recherche", "rechercher", "buscar", "busqueda", "cerca", "ricerca"]),
    ("preview", &["vorschau", "apercu", "vistaprevia", "anteprima"]),
    ("calculate", &["berechnen", "berechnung", "calculer", "calcul", "calcular", "calcolo"]),
    ("estimate", &["schaetzung", "estimation", "estimacion", "stima"]),
    ("check", &["pruefen", "pruefung", "verifier", "comprobar", "controlla"]),
    ("quote", &["angebot", "devis", "cotizacion", "preventivo"]),
    ("cancel", &["stornieren", "storno", "abbrechen", "annuler", "annulation", "cancelar", "annulla"]),
    ("terminate", &["kuendigen", "kuendigung", "resilier", "resiliation"]),
    ("approve", &["freigeben", "freigabe", "genehmigen", "approuver", "valider", "aprobar", "approva"]),
    ("reject", &["ablehnen", "rejeter", "refuser", "rechazar", "rifiuta"]),
    ("confirm", &["bestaetigen", "bestaetigung", "confirmer", "confirmar", "conferma"]),
    ("activate", &["aktivieren", "activer", "activar", "attiva"]),
    ("deactivate", &["deaktivieren", "desactiver", "desactivar", "disattiva"]),
    ("block", &["sperren", "bloquer", "bloquear", "blocca"]),
    ("unblock", &["entsperren", "debloquer", "desbloquear", "sblocca"]),
    ("close", &["schliessen", "abschliessen", "fermer", "cloturer", "cerrar", "chiudi"]),
    ("send", &["senden", "versenden", "envoyer", "enviar", "invia"]),
    ("create", &["anlegen", "erstellen", "creer", "crear", "crea"]),
    ("update", &["aktualisieren", "aendern", "modifier", "actualizar", "modificar", "aggiorna"]),
    ("amount", &["amt", "amnt"]),
    ("balance", &["bal"]),
    ("account", &["acct", "acc"]),
    ("currency", &["ccy", "crncy"]),
    ("payment", &["pmt", "pymt", "pymnt"]),
    ("transaction", &["txn", "trx", "trxn"]),
    ("transfer", &["xfer", "trf"]),
    ("quantity", &["qty"]),
    ("customer", &["cust"]),
    ("address", &["addr"]),
    ("statement", &["stmt"]),
    ("withdrawal", &["wdl"]),
    ("subscription", &["subscr"]),
    ("delete", &["loeschen", "supprimer", "eliminar", "borrar", "elimina"]),
];

/// Translates the known words of a name; returns the name unchanged if it has none.
pub(crate) fn english(name: &str) -> String {
    let all = words(name);
    if !all.iter().any(|word| meaning(word).is_some()) {
        return name.into();
    }
    let said = all.into_iter().map(|word| meaning(&word).unwrap_or(word));
    said.collect::<Vec<_>>().join("-")
}

fn meaning(word: &str) -> Option<String> {
    // A map, because the lookup runs for every member of every schema.
    static KNOWN: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
        let each = MEANINGS.iter().rev();
        each.flat_map(|(english, all)| all.iter().map(|word| (*word, *english)))
            .collect()
    });
    let find = |word: &str| KNOWN.get(word).copied();
    if let Some(english) = find(word) {
        return Some(english.into());
    }
    let stems = ["s", "es", "n", "en", "e", "i"]
        .into_iter()
        .filter_map(|end| word.strip_suffix(end));
    let mut found = stems.filter(|stem| stem.len() > 3).filter_map(find);
    found.next().map(plural)
}

fn plural(english: &str) -> String {
    match english.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{english}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::english;

    #[test]
    fn known_words_are_put_into_english_and_others_stay() {
        let check = |name, wanted| assert_eq!(english(name), wanted, "{name}");
        check("zahlungen", "payments");
        check("empfaengerIban", "receiver-iban");
        check("beneficiarios", "beneficiaries");
        check("paymentOrders", "paymentOrders");
        check("deposits.methods", "deposits.methods");
        check("newBal", "new-balance");
        check("done", "done");
    }
}
