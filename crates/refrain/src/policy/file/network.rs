//! Networks, as `trusted_proxies` of `[proxy]` lists them.

use std::{fmt, net::IpAddr, str::FromStr};

use serde::{Serialize, Serializer};

use crate::{Error, Result, policy::invalid};

/// An IP address, or a network of them such as `10.0.0.0/8`.
///
/// ```
/// use refrain::policy::Network;
/// let network: Network = "10.0.0.0/8".parse()?;
/// assert!(network.contains("10.1.2.3".parse().unwrap()));
/// assert!(!network.contains("11.1.2.3".parse().unwrap()));
/// # Ok::<(), refrain::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Number of leading bits that all addresses of the network share.
    prefix: u32,
}

impl Network {
    /// Whether the address is in this network. An IPv4 address in IPv6 form counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, own_len) = bits(self.address);
        let (other, other_len) = bits(address.to_canonical());
        own_len == other_len && self.is_equal(own, other, own_len)
    }

    fn is_equal(&self, own: u128, other: u128, len: u32) -> bool {
        let differing = own ^ other;
        // A shift by all 128 bits would overflow.
        differing.checked_shr(len - self.prefix).unwrap_or(0) == 0
    }
}

/// The bits of an address, and their number.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

impl FromStr for Network {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || {
            invalid(format!(
                "invalid network `{text}`; write an address such as ::1, or a network such as 10.0.0.0/8"
            ))
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let (own, len) = bits(address);
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            None => len,
            Some(text) => {
                let digits = Some(text).filter(is_number).ok_or_else(bad)?;
                let prefix: u32 = digits.parse().map_err(|_| bad())?;
                Some(prefix).filter(|it| *it <= len).ok_or_else(bad)?
            }
        };
        let host = own & !u128::MAX.checked_shl(len - prefix).unwrap_or(0);
        if host != 0 {
            return Err(invalid(format!(
                "`{text}` has bits after its prefix of {prefix} bits; write the first address of the network, or a longer prefix"
            )));
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix == bits(self.address).1 {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_only() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.7.9", "192.168.7.9", "192.168.7.8"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("::1", "::1", "::2"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("0.0.0.0/0", "203.0.113.7", "::1"),
            ("::/0", "2001:db8::1", "127.0.0.1"),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert!(parsed.contains(inside.parse().unwrap()), "{network}");
            assert!(!parsed.contains(outside.parse().unwrap()), "{network}");
            assert_eq!(parsed.to_string(), network);
        }
    }

    #[test]
    fn rejects_what_is_no_network() {
        for text in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.1.2.3/8",
            "::/129",
            "localhost",
            "10.0.0.0/8/8",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
