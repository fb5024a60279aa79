//! Rust's text as tokens: enough to find items and paths, nothing of types or expressions.

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Word(String),
    /// `::`
    Sep,
    Open(char),
    Close(char),
    Sign(char),
    /// A literal or a lifetime.
    Other,
}

/// The tokens of a file, each with its line.
pub(crate) fn tokens(text: &str) -> Vec<(Token, usize)> {
    let text: Vec<char> = text.chars().collect();
    let (mut found, mut line, mut at) = (Vec::new(), 1, 0);
    while at < text.len() {
        let (end, token) = next(&text, at);
        found.extend(token.map(|token| (token, line)));
        line += text[at..end].iter().filter(|letter| **letter == '\n').count();
        at = end;
    }
    found
}

/// Where what begins here ends, and its token unless it is space or a comment.
fn next(text: &[char], at: usize) -> (usize, Option<Token>) {
    let peek = |by: usize| text.get(at + by).copied().unwrap_or(' ');
    match text[at] {
        letter if letter.is_whitespace() => (at + 1, None),
        '/' if peek(1) == '/' => (until(text, at, |letter| letter == '\n'), None),
        '/' if peek(1) == '*' => (comment(text, at), None),
        '"' => (string(text, at), Some(Token::Other)),
        '\'' if peek(1) == '\\' || peek(2) == '\'' => (character(text, at), Some(Token::Other)),
        '\'' => (until(text, at + 1, |letter| !is_word(letter)), Some(Token::Other)),
        letter if letter.is_ascii_digit() => (until(text, at, |letter| !is_word(letter)), Some(Token::Other)),
        letter if is_word(letter) => word(text, at),
        ':' if peek(1) == ':' => (at + 2, Some(Token::Sep)),
        letter @ ('(' | '[' | '{') => (at + 1, Some(Token::Open(letter))),
        letter @ (')' | ']' | '}') => (at + 1, Some(Token::Close(letter))),
        letter => (at + 1, Some(Token::Sign(letter))),
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn until(text: &[char], from: usize, ends: impl Fn(char) -> bool) -> usize {
    text[from..].iter().position(|letter| ends(*letter)).map_or(text.len(), |by| from + by)
}

/// A word, or the literal that it is the prefix of: `r#"…"#`, `b"…"`, `b'…'`, or the name after `r#`.
fn word(text: &[char], at: usize) -> (usize, Option<Token>) {
    let end = until(text, at, |letter| !is_word(letter));
    let name: String = text[at..end].iter().collect();
    let hashes = text[end..].iter().take_while(|letter| **letter == '#').count();
    match (name.as_str(), text.get(end + hashes)) {
        ("r" | "br" | "cr", Some('"')) => (raw(text, end + hashes + 1, hashes), Some(Token::Other)),
        ("b" | "c", Some('"')) if hashes == 0 => (string(text, end), Some(Token::Other)),
        ("b", Some('\'')) if hashes == 0 => (character(text, end), Some(Token::Other)),
        ("r", _) if hashes == 1 => word(text, end + 1),
        _ => (end, Some(Token::Word(name))),
    }
}

fn raw(text: &[char], from: usize, hashes: usize) -> usize {
    let ends =
        |at: usize| text[at] == '"' && text[at + 1..].iter().take_while(|letter| **letter == '#').count() >= hashes;
    (from..text.len()).find(|at| ends(*at)).map_or(text.len(), |at| at + 1 + hashes)
}

fn string(text: &[char], at: usize) -> usize {
    quoted(text, at, '"')
}

fn character(text: &[char], at: usize) -> usize {
    quoted(text, at, '\'')
}

fn quoted(text: &[char], at: usize, quote: char) -> usize {
    let mut at = at + 1;
    while at < text.len() && text[at] != quote {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(text.len())
}

fn comment(text: &[char], at: usize) -> usize {
    let (mut at, mut depth) = (at + 2, 1);
    while at < text.len() && depth > 0 {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}
