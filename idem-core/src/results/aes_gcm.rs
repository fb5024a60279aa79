//! Seals results with AES-256-GCM, for answers that must not be readable in the database, in a replica or in a backup.
//!
//! Each row has 32 random bytes of its own, from which HKDF-SHA256 derives its key and its nonce: no two rows share either,
//! however many a master key has sealed. The readable part of the row is authenticated too, and the record that it belongs to, so that no row
//! can be put in another one's place, not even in that of a later record of its own key, and no error can be turned into a success.

use std::{collections::BTreeMap, fmt, sync::Arc, time::SystemTime};

use bytes::Bytes;
use ring::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::{SecureRandom, SystemRandom},
};

use crate::{
    config_error::ConfigError,
    message::headers::Headers,
    results::{
        encrypt::{OfRecord, Seal, SealError},
        result::{NotKept, ResultBody, StoredResult},
        rows::{KeptResult, NewResult},
    },
};

/// The length of a master key, in bytes.
pub const SEAL_KEY_BYTES: usize = 32;

const SALT_BYTES: usize = 32;

/// The derived bytes are the key, and behind it the nonce.
const DERIVED_BYTES: usize = SEAL_KEY_BYTES + NONCE_LEN;

/// The version of the layout of the sealed and authenticated bytes. Another layout needs another number.
const LAYOUT: &[u8] = b"idem:result:v1";

/// Where master keys come from: a file that the orchestrator mounts, a key service. It is asked for the current key at the
/// start, and for an older key when the first result that is sealed with it is read. Its answers are remembered.
///
/// These calls must not wait, so ask a key service (KMS) before building the consumer: decrypt the data keys from the settings,
/// and put them into a map.
///
/// ```
/// use std::{collections::BTreeMap, sync::Arc};
///
/// use idem_core::results::{ResultKeys, SEAL_KEY_BYTES, SealKeyProvider};
///
/// /// Data keys, as a key service has decrypted them at the start.
/// struct FromKms(BTreeMap<u16, [u8; SEAL_KEY_BYTES]>);
///
/// impl SealKeyProvider for FromKms {
///     fn current(&self) -> u16 {
///         self.0.last_key_value().map_or(0, |(number, _)| *number)
///     }
///
///     fn key(&self, number: u16) -> Option<[u8; SEAL_KEY_BYTES]> {
///         self.0.get(&number).copied()
///     }
/// }
///
/// # fn main() -> Result<(), idem_core::ConfigError> {
/// let keys = ResultKeys::from_provider(Arc::new(FromKms(BTreeMap::from([(1, [1; 32]), (2, [2; 32])]))))?;
/// # let _ = keys;
/// # Ok(())
/// # }
/// ```
pub trait SealKeyProvider: Send + Sync + 'static {
    /// The number of the key that new results are sealed with, from 1 to 32,767.
    fn current(&self) -> u16;

    /// The key with this number; `None` if it is gone or not known here.
    fn key(&self, number: u16) -> Option<[u8; SEAL_KEY_BYTES]>;
}

/// The keys that results are sealed with; see [`encrypt_results`](crate::consumer::DedupConsumerBuilder::encrypt_results).
///
/// To change the key, give all programs the new one beside the old, and then make the new one the current one. Keep the old
/// one for as long as results are kept that it has sealed.
#[derive(Clone)]
pub struct ResultKeys(Arc<dyn SealKeyProvider>);

/// Keys in memory.
struct Keys {
    current: u16,
    all: BTreeMap<u16, [u8; SEAL_KEY_BYTES]>,
}

impl SealKeyProvider for Keys {
    fn current(&self) -> u16 {
        self.current
    }

    fn key(&self, number: u16) -> Option<[u8; SEAL_KEY_BYTES]> {
        self.all.get(&number).copied()
    }
}

impl fmt::Debug for ResultKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResultKeys").field("current", &self.0.current()).finish_non_exhaustive()
    }
}

impl ResultKeys {
    /// Keys by their numbers: `current` seals, and all of them open. Never use a number for another key.
    ///
    /// # Errors
    /// As for [`from_provider`](Self::from_provider).
    pub fn new(current: u16, keys: impl IntoIterator<Item = (u16, [u8; SEAL_KEY_BYTES])>) -> Result<Self, ConfigError> {
        Self::from_provider(Arc::new(Keys { current, all: keys.into_iter().collect() }))
    }

    /// Keys from a provider.
    ///
    /// # Errors
    /// If the current number is not from 1 to 32,767, or has no key.
    pub fn from_provider(provider: Arc<dyn SealKeyProvider>) -> Result<Self, ConfigError> {
        let current = provider.current();
        if current == 0 || current > u16::MAX / 2 {
            return Err(ConfigError::new("encrypt_results", current, "the current key has a number from 1 to 32,767"));
        }
        if provider.key(current).is_none() {
            return Err(ConfigError::new("encrypt_results", current, "there must be a key with the current number"));
        }
        Ok(Self(provider))
    }

    /// Seals with this salt, which must never be used twice.
    fn seal_with(&self, salt: [u8; SALT_BYTES], of: OfRecord<'_>, result: NewResult) -> Result<NewResult, SealError> {
        let number = self.0.current();
        let master = self.0.key(number).ok_or(SealError("the current key is gone"))?;
        let NewResult { scope, key, is_error, result, kept_for, .. } = result;
        let (cipher, nonce) = derived(&master, &salt, of).ok_or(SealError("no key could be derived"))?;
        let readable = readable(of, is_error, &result, number);
        let mut sealed = plain(&result);
        cipher.seal_in_place_append_tag(nonce, Aad::from(readable), &mut sealed).map_err(|_| SealError("too large"))?;
        let body = Bytes::from([&salt[..], &sealed].concat());
        let result = ResultBody { headers: Headers::default(), body, ..result };
        Ok(NewResult { scope, key, is_error, result, sealed_with: number, kept_for })
    }
}

impl Seal for ResultKeys {
    fn seal(&self, of: OfRecord<'_>, result: NewResult) -> Result<NewResult, SealError> {
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| SealError("the system gives no random bytes"))?;
        self.seal_with(salt, of, result)
    }

    fn open(&self, of: OfRecord<'_>, kept: KeptResult) -> Result<StoredResult, NotKept> {
        let KeptResult { is_error, result, sealed_with: number, until, .. } = kept;
        let master = self.0.key(number).ok_or(NotKept::NoKey { number })?;
        let altered = || NotKept::Altered { number };
        let (salt, sealed) = result.body.split_first_chunk::<SALT_BYTES>().ok_or_else(altered)?;
        let (cipher, nonce) = derived(&master, salt, of).ok_or_else(altered)?;
        let mut sealed = sealed.to_vec();
        let readable = readable(of, is_error, &result, number);
        let opened = cipher.open_in_place(nonce, Aad::from(readable), &mut sealed).map_err(|_| altered())?;
        let (headers, body) = parts(opened).ok_or_else(altered)?;
        Ok(StoredResult { is_error, result: ResultBody { headers, body, ..result }, until })
    }
}

/// The bytes that are derived for a row.
struct Derived;

impl KeyType for Derived {
    fn len(&self) -> usize {
        DERIVED_BYTES
    }
}

/// The key and the nonce of one row.
fn derived(master: &[u8; SEAL_KEY_BYTES], salt: &[u8; SALT_BYTES], of: OfRecord<'_>) -> Option<(LessSafeKey, Nonce)> {
    let of_row = framed([LAYOUT, &of.scope.0.to_be_bytes(), of.key.as_str().as_bytes()]);
    let mut derived = [0; DERIVED_BYTES];
    let info = [&of_row[..]];
    Salt::new(HKDF_SHA256, salt).extract(master).expand(&info, Derived).ok()?.fill(&mut derived).ok()?;
    let (key, nonce) = derived.split_first_chunk::<SEAL_KEY_BYTES>()?;
    let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
    Some((cipher, Nonce::try_assume_unique_for_key(nonce).ok()?))
}

/// All parts of the row that are not encrypted, and what tells its record from an earlier one of the key, each with its length.
fn readable(of: OfRecord<'_>, is_error: bool, result: &ResultBody, number: u16) -> Vec<u8> {
    // Microseconds, as finely as every store keeps them.
    let processed_at = of.processed_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros();
    let status = result.status.map(u16::to_be_bytes);
    let content_type = result.content_type.as_deref().map(str::as_bytes);
    let mut readable = framed([
        LAYOUT,
        &of.scope.0.to_be_bytes(),
        of.key.as_str().as_bytes(),
        of.hash.as_bytes(),
        &processed_at.to_be_bytes(),
        &[u8::from(is_error)],
        // An absent part differs from an empty one.
        &[u8::from(status.is_some()), u8::from(content_type.is_some())],
        status.as_ref().map_or(&[], |status| &status[..]),
        content_type.unwrap_or_default(),
        &number.to_be_bytes(),
    ]);
    // A further part if there is a reference.
    readable.extend(framed(result.reference.as_deref().map(str::as_bytes)));
    readable
}

fn framed<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut framed = Vec::new();
    for part in parts {
        framed.extend((part.len() as u64).to_be_bytes());
        framed.extend(part);
    }
    framed
}

/// The bytes that are encrypted: the number of headers, each header's name and its value if it has one, and the body.
fn plain(result: &ResultBody) -> Vec<u8> {
    let headers: Vec<_> = result.headers.iter().collect();
    let mut plain = (headers.len() as u64).to_be_bytes().to_vec();
    for (name, value) in headers {
        plain.extend(framed([name.as_bytes(), &[u8::from(value.is_some())], value.unwrap_or_default()]));
    }
    plain.extend(&result.body);
    plain
}

/// Undoes [`plain`].
fn parts(plain: &[u8]) -> Option<(Headers, Bytes)> {
    let (count, mut rest) = plain.split_first_chunk::<8>()?;
    let mut headers = Headers::default();
    for _ in 0..u64::from_be_bytes(*count) {
        let name = std::str::from_utf8(part(&mut rest)?).ok()?;
        let has_value = part(&mut rest)? == [1];
        let value = part(&mut rest)?;
        headers.push(name, has_value.then(|| Bytes::copy_from_slice(value)));
    }
    Some((headers, Bytes::copy_from_slice(rest)))
}

fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<8>()?;
    let (part, after) = after.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
    *rest = after;
    Some(part)
}

#[cfg(test)]
mod tests;
