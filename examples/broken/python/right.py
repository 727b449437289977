"""A correct service: `refrain verify` must find no failure."""

from base import Service, serve

serve(Service)
