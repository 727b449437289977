// Adds new requests to the list of requests while the page is open. Everything else works without this script.
'use strict';
