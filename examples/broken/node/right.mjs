// Nothing is wrong here: `refrain verify` has to be silent.

import { Service, serve } from "./base.mjs";

serve(Service);
