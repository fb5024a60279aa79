//! The addresses that a stranger's endpoint may have: none that would reach the networks behind this machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Whether this is an address of the public internet.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match embedded(address) {
            Some(inner) => is_public_v4(inner),
            None => is_public_v6(address),
        },
    }
}

/// By the registry of special-purpose addresses (RFC 6890 and its successors).
fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = matches!(
        (a, b, c),
        (0 | 10 | 127, ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18..=19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            | (224..=255, ..)
    );
    !is_special
}

/// Public addresses are in 2000::/3, except those for documentation and benchmarks.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, ..] = address.segments();
    let is_special = matches!((a, b), (0x2001, 0x0db8 | 0x0000..=0x01ff) | (0x3fff, 0x0000..=0x0fff));
    (0x2000..=0x3fff).contains(&a) && !is_special
}

/// The IPv4 address that an IPv6 one stands for: mapped, compatible, translated (NAT64) or tunnelled (6to4).
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let v4 = |high: u16, low: u16| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low));
    match s {
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] => Some(v4(high, low)),
        [0, 0, 0, 0, 0xffff, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        [0x2002, high, low, ..] => Some(v4(high, low)),
        _ => None,
    }
}

/// The error of a name without an address that may be called.
#[derive(Debug, thiserror::Error)]
#[error("{name} has no public address")]
pub(crate) struct NotPublic {
    pub(crate) name: String,
}

/// Resolves names, and returns public addresses alone. The client connects to a returned address, so a name that resolves to
/// another one a moment later gains nothing.
pub(crate) struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err(NotPublic { name }.into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S38: every address in a network of our own is refused, in each notation.
    #[test]
    fn s38_addresses_that_are_not_public() {
        let refused = [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "100.64.0.1",
            "100.127.255.255",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "3fff::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:7f00:1::",
            "::ffff:0:10.0.0.1",
        ];
        for address in refused {
            assert!(!is_public(address.parse().expect("an address")), "{address}");
        }
        for address in ["1.1.1.1", "100.63.255.255", "172.32.0.1", "192.167.0.1", "2606:4700::1111", "::ffff:8.8.8.8"] {
            assert!(is_public(address.parse().expect("an address")), "{address}");
        }
    }
}
