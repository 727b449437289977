"""The record is looked up by key and the exact text of the credential.

Seen where "scope by user" was implemented with the Authorization header.
Cost: the token is refreshed between the request and its retry, and the retry pays again.
"""

from base import Service, serve


class CredentialInKey(Service):
    def identity_of(self, request):
        return f"{request.headers['authorization']} {self.key_of(request)}"


serve(CredentialInKey)
