"""The record is looked up by key and credential, as the credential is written.

Seen where "scope it by user" was done with the Authorization header, because that was at hand.
Cost: the token is refreshed between the request and its retry, and the retry pays again.
"""

from base import Service, serve


class CredentialInKey(Service):
    def identity_of(self, request):
        return f"{request.headers['authorization']} {self.key_of(request)}"


serve(CredentialInKey)
