// A correct service: `refrain verify` must find no failure.

import { Service, serve } from "./base.mjs";

serve(Service);
