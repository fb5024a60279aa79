//! The printed report.

use std::{
    fmt::{self, Display},
    io::IsTerminal,
    time::Duration,
};

use idem_core::dead_letter::{Reason, StoredDeadLetter};

use crate::{
    crash::Moment,
    ledger::Totals,
    purchases::{SOLD, Sent},
};

/// The result of one consumer.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) totals: Totals,
}

pub(crate) fn opening(sent: &Sent, crashes: usize) {
    println!("{}", bold("69,659 real purchases through a broker that delivers at least once"));
    println!();
    println!("  the producer  sends {} messages: {} purchases,", grouped(sent.messages.len()), grouped(SOLD.purchases));
    println!("                {} of them twice, {} again with another amount,", grouped(sent.again), sent.altered);
    println!("                and {} that nobody can read or that have no key", sent.unusable);
    println!("  the broker    delivers about one message in ten a second time");
    println!("  the process   crashes {crashes} times, inside a transaction or just after its commit");
}

pub(crate) fn start(name: &str) -> String {
    format!("\n{}", bold(name))
}

pub(crate) fn crash(moment: &Moment, delivered: u64) -> String {
    format!("  {} crash after {:>6} deliveries: {moment}", red("x"), grouped(delivered))
}

pub(crate) fn end(took: Duration, delivered: u64) -> String {
    format!("  {} done  after {:>6} deliveries, in {:.1} s", green("="), grouped(delivered), took.as_secs_f64())
}

pub(crate) fn totals(runs: &[Run]) {
    println!();
    let head = format!("{:<26}{:>10}{:>12}{:>10}{:>16}{:>14}", "", "purchases", "customers", "CDs", "money", "off by");
    println!("{}", bold(&head));
    println!("{}", row("what was really sold", SOLD));
    for run in runs {
        let off = run.totals.cents - SOLD.cents;
        let sign = if off > 0 { "+" } else { "" };
        let off = format!("{:>14}", format!("{sign}{}", dollars(off)));
        let off = if run.totals == SOLD { green(&off) } else { red(&off) };
        println!("{}{off}", row(run.name, run.totals));
    }
}

fn row(name: &str, Totals { purchases, customers, cds, cents }: Totals) -> String {
    let (purchases, customers, cds) = (grouped(purchases), grouped(customers), grouped(cds));
    format!("{name:<26}{purchases:>10}{customers:>12}{cds:>10}{:>16}", dollars(cents))
}

/// The parts of the three lines' seconds; without them the wrong ways would look like the fast ones.
pub(crate) fn times() {
    println!();
    println!(
        "  The seconds: most of the difference is waiting for the disk, some 800 times in each loop and 3,200 times"
    );
    println!(
        "  in idem. After each of its seven starts it handles a hundred messages or more one by one, each counted"
    );
    println!(
        "  before it runs, because one of them may have caused the crash. The rest is a record of each key, which"
    );
    println!("  the loops do without. A loop that commits each message, as most are written, is 2.4 times slower than");
    println!("  idem on SQLite (benches/README.md).");
}

/// Why the other two are wrong.
pub(crate) fn reasons(sent: &Sent, (repeated, repeated_cents): (usize, i64)) {
    println!();
    println!("  Insert, then acknowledge: every redelivery, second send and altered amount is counted as a purchase.");
    println!("  Dedup by content: {repeated} purchases of {} equal another in every column", dollars(repeated_cents));
    println!("  and are lost; {} altered amounts of {} come in.", sent.altered, dollars(sent.altered_cents));
}

/// The messages that idem set aside, and why.
pub(crate) fn dead_letters(letters: &[StoredDeadLetter]) {
    println!("\n{}", bold("Set aside by idem as dead letters, none counted and none lost"));
    let mut reasons: Vec<(Reason, u64, &StoredDeadLetter)> = Vec::new();
    for letter in letters {
        match reasons.iter_mut().find(|(reason, ..)| *reason == letter.reason) {
            Some((_, count, _)) => *count += letter.copies,
            None => reasons.push((letter.reason, letter.copies, letter)),
        }
    }
    reasons.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
    for (reason, count, letter) in reasons {
        println!("  {count:>4}  {reason}");
        println!("        such as {}: {}", letter.origin, letter.error);
    }
}

/// `2500315.63` as `$2,500,315.63`.
fn dollars(cents: i64) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    format!("{sign}${}.{:02}", grouped(cents.unsigned_abs() / 100), cents.unsigned_abs() % 100)
}

fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

fn bold(text: &str) -> impl Display {
    Painted("1", text.to_owned())
}

fn green(text: &str) -> Painted {
    Painted("32", text.to_owned())
}

fn red(text: &str) -> Painted {
    Painted("31", text.to_owned())
}

/// Text in a colour where it goes to a terminal.
struct Painted(&'static str, String);

impl Display for Painted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(colour, text) = self;
        if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            write!(f, "\x1b[{colour}m{text}\x1b[0m")
        } else {
            f.write_str(text)
        }
    }
}
