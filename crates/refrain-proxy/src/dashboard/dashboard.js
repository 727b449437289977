// Adds new requests to the list while the page is open. Everything else works without this script.
'use strict';

const ROWS_MAX = 100;
const rows = document.getElementById('live');

if (rows && window.EventSource) {
  const state = document.getElementById('live-state');
  const pause = document.getElementById('live-pause');
  let paused = false;
  let added = 0;

  const tell = text => { if (state.textContent !== text) state.textContent = text; };
  const source = new EventSource(rows.dataset.source);
  source.onopen = () => { pause.hidden = false; tell(paused ? 'Paused.' : 'Live.'); };
  source.onerror = () => tell('Not connected; new requests are not shown.');
  source.onmessage = event => {
    if (paused) return;
    // The server has escaped every text in these rows, and the page's policy runs no script of theirs.
    rows.insertAdjacentHTML('afterbegin', event.data);
    while (rows.rows.length > ROWS_MAX) rows.rows[rows.rows.length - 1].remove();
    const none = document.getElementById('live-none');
    if (none) none.remove();
    added += 1;
  };
  // One short message now and then: a screen reader must not read every row.
  setInterval(() => {
    if (added > 0 && !paused) tell(state.textContent === 'Live: new requests.' ? 'Live: more requests.' : 'Live: new requests.');
    added = 0;
  }, 10000);
  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
    pause.textContent = paused ? 'Continue' : 'Pause';
    tell(paused ? 'Paused.' : 'Live.');
  });
}
