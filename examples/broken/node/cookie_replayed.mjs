// All headers of the answer are kept and replayed, Set-Cookie among them.
//
// Seen wherever "the response" is stored whole.
// Cost: an old session is set again after the user has logged out; with a key that leaks, it is set for somebody else.

import { Service, serve } from "./base.mjs";

class CookieReplayed extends Service {
  kept(answer) {
    return answer;
  }
}

serve(CookieReplayed);
