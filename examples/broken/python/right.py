"""Nothing is wrong here: `refrain verify` has to be silent."""

from base import Service, serve

serve(Service)
