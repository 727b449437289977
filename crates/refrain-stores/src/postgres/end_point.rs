//! Channel binding for SCRAM: the digest of the server's certificate, `tls-server-end-point` of RFC 5929.
//!
//! A man in the middle with another certificate, even a trusted one, cannot relay the login.

use sha2::{Digest as _, Sha256, Sha384, Sha512};

const SEQUENCE: u8 = 0x30;
const OBJECT: u8 = 0x06;

/// DER-encoded object identifiers of signature algorithms, and the digest to use for each.
///
/// MD5 and SHA-1 count as SHA-256, as the RFC requires. Algorithms without a digest of their own, such as Ed25519,
/// are missing: servers offer no channel binding with them.
const ALGORITHMS: [(&[u8], Digest); 8] = [
    // 1.2.840.113549.1.1: RSA with MD5, SHA-1, SHA-256, SHA-384, SHA-512.
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04", Digest::Sha256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05", Digest::Sha256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b", Digest::Sha256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c", Digest::Sha384),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d", Digest::Sha512),
    // 1.2.840.10045.4.3: ECDSA with SHA-256, SHA-384, SHA-512.
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x02", Digest::Sha256),
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x03", Digest::Sha384),
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x04", Digest::Sha512),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Digest {
    Sha256,
    Sha384,
    Sha512,
}

/// Digest of a DER certificate; `None` if the signature algorithm is unknown.
pub(super) fn digest(certificate: &[u8]) -> Option<Vec<u8>> {
    Some(match algorithm(certificate)? {
        Digest::Sha256 => Sha256::digest(certificate).to_vec(),
        Digest::Sha384 => Sha384::digest(certificate).to_vec(),
        Digest::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

/// `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, … }, … }`
fn algorithm(certificate: &[u8]) -> Option<Digest> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (_, rest) = element(certificate, SEQUENCE)?;
    let (signature, _) = element(rest, SEQUENCE)?;
    let (object, _) = element(signature, OBJECT)?;
    let known = ALGORITHMS.iter().find(|(name, _)| *name == object);
    known.map(|(_, digest)| *digest)
}

/// Content of the first DER element in `bytes`, and the bytes after it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(length) {
        short @ 0..=0x7f => (short, rest),
        // Long form: the number of length bytes. A certificate is shorter than 16 MiB.
        long @ 0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(long - 0x80)?;
            let length = length
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    (found == tag).then_some(())?;
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    //! An unexpected certificate must neither produce a wrong digest nor cause a panic.

    use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject as _};

    use super::*;

    /// RSA certificates, which `rcgen` cannot create, with the digests that `openssl dgst` prints of their DER form.
    /// Created with `openssl req -x509 -newkey rsa:1024 -nodes -keyout /dev/null -subj /CN=db -days 36500 -sha256`
    /// and the other digests.
    const RSA: [(&[u8], &str); 4] = [
        (
            include_bytes!("../../tests/postgres/rsa/sha1.pem"),
            "bf2916afff7fe5f9bbb0aebb8299d7f9ebeea847caaf5b848865dfbbb60513fb",
        ),
        (
            include_bytes!("../../tests/postgres/rsa/sha256.pem"),
            "fe98482448610fdb2e98595fc5a1239f7dadcb1019c13a3d97931628f724884b",
        ),
        (
            include_bytes!("../../tests/postgres/rsa/sha384.pem"),
            "dc7becbbe587698bde43844ac75e4a1179376cd1e448f6a23fdf8848bb22c164d506e9e00083e3af62ca66b81c87fa9b",
        ),
        (
            include_bytes!("../../tests/postgres/rsa/sha512.pem"),
            "73b8b4a2e19795374b683e3f11d606fc7f738b521989fc8184a1f3f80b8fcfd95f323f5af564f0bb3335127e1f709bb87f5955b7f15f074dfaf0812cd5b279cd",
        ),
    ];

    #[test]
    fn rsa_certificates_have_the_digest_of_their_signature() {
        for (pem, want) in RSA {
            let certificate = CertificateDer::from_pem_slice(pem).unwrap();
            let bytes = digest(&certificate).unwrap();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, want);
        }
    }

    fn certificate(algorithm: &'static rcgen::SignatureAlgorithm) -> Vec<u8> {
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["db".to_owned()]).unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_digest_is_that_of_the_signature() {
        for (algorithm, want) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let digest = digest(&certificate(algorithm));
            assert_eq!(digest.map(|it| it.len()), want, "{algorithm:?}");
        }
    }

    #[test]
    fn invalid_certificate_has_no_digest() {
        let whole = certificate(&rcgen::PKCS_ECDSA_P256_SHA256);
        // Truncated: shorter than the length of the outer element.
        for length in 0..whole.len() - 100 {
            assert_eq!(digest(&whole[..length]), None, "{length}");
        }
        assert_eq!(digest(b"\x30\x84\xff\xff\xff\xff"), None);
    }
}
