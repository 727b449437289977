// Adds new requests to the list while the page is open. Everything else works without this script.
'use strict';

const ROWS_MAX = 100;
const TELL_EVERY_MS = 10000;
const rows = document.getElementById('live');

function follow() {
  const state = document.getElementById('live-state');
  const pause = document.getElementById('live-pause');
  const address = new URL(rows.dataset.source, location);
  let source = null;
  let added = 0;

  const connect = () => {
    source = new EventSource(address);
    source.onopen = () => { pause.hidden = false; state.textContent = 'Live.'; };
    source.onerror = () => { state.textContent = 'Not connected: new requests are not shown.'; };
    source.onmessage = add;
  };
  const add = event => {
    // The server has escaped every text in these rows, and the policy of the page runs no script in them.
    rows.insertAdjacentHTML('afterbegin', event.data);
    while (rows.rows.length > ROWS_MAX) rows.rows[rows.rows.length - 1].remove();
    document.getElementById('live-none')?.remove();
    address.searchParams.set('after', event.lastEventId);
    added += 1;
  };
  // One short message now and then: a screen reader must not read every row.
  setInterval(() => {
    if (added > 0 && source) state.textContent = `Live; updated at ${new Date().toISOString().slice(11, 19)}.`;
    added = 0;
  }, TELL_EVERY_MS);
  pause.addEventListener('click', () => {
    if (source) {
      source.close();
      source = null;
      state.textContent = 'Paused.';
    } else {
      connect();
    }
    pause.setAttribute('aria-pressed', String(!source));
    pause.textContent = source ? 'Pause' : 'Continue';
  });
  connect();
}

if (rows && window.EventSource) follow();
