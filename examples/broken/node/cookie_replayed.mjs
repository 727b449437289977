// All headers of the response are stored and replayed, including Set-Cookie.
//
// Seen where the whole response is stored.
// Cost: an old session is set again after the user has logged out; if a key leaks, it is set for another user.

import { Service, serve } from "./base.mjs";

class CookieReplayed extends Service {
  kept(answer) {
    return answer;
  }
}

serve(CookieReplayed);
