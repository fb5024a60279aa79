//! Runs lives and says which promises they broke: `./sim` builds it and passes its arguments on.

mod args;

use std::{process::ExitCode, time::Instant};

use simulation::{Lives, Scenario, Sum, Until, Way, live, shrink, silence_panics, teeth};

use crate::args::Args;

#[allow(clippy::print_stderr, reason = "a program")]
fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("sim: {problem}");
            return ExitCode::from(2);
        }
    };
    silence_panics();
    if args.teeth {
        return bite(&args);
    }
    let way = match args.bug.as_deref().map_or(Ok(Way::default()), teeth::plant) {
        Ok(way) => Way { first_dies_at: args.dies_at, ..way },
        Err(problem) => {
            eprintln!("sim: {problem}");
            return ExitCode::from(2);
        }
    };
    if args.trace { trace(&args, way) } else { many(&args, way) }
}

#[allow(clippy::disallowed_methods, reason = "the time that it takes the person who waits for it")]
#[allow(clippy::print_stdout, reason = "a program")]
fn many(args: &Args, way: Way) -> ExitCode {
    let (begun, lives) = (Instant::now(), args.lives());
    let Args { theme, seed, jobs, every_poll, .. } = *args;
    let until = args.until.map_or(Until::Never, Until::Rule);
    let sum = Lives { theme, seed, count: lives, jobs, way, every_poll, until }.run(|| {
        // It was planted on the first thread, and each has its own.
        if let Some(bug) = &args.bug {
            let _ = teeth::plant(bug);
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let Sum { lives, hash, polls, deaths, unknown_commits, took, broken } = sum;
    println!(
        "{lives} lives of the theme {} from seed {seed}: {:.1} s, {:.0} lives a minute, {polls} polls, {deaths} deaths, \
         {unknown_commits} commits without an answer, {} simulated hours, hash {hash:016x}",
        theme.as_str(),
        seconds,
        lives as f64 * 60.0 / seconds,
        took.as_secs() / 3600,
    );
    for (rule, first) in &broken {
        println!("\nBROKEN in {} lives: {rule:?}, first by seed {} at {:?}", first.lives, first.seed, first.breach.at);
        println!("    {}", first.breach.text);
        match first.dies_at {
            None => println!("    ./sim --theme {} --seed {} --trace", theme.as_str(), first.seed),
            Some(poll) => {
                println!("    ./sim --theme {} --seed {} --dies-at {poll} --trace", theme.as_str(), first.seed)
            }
        }
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The table of planted bugs, also into the page that has it.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "a program")]
fn bite(args: &Args) -> ExitCode {
    let (table, all_found) = teeth::bite(args.jobs, |line| println!("{line}"));
    if let Some(page) = &args.page {
        let (begin, end) = ("<!-- teeth -->\n", "<!-- end of teeth -->");
        let written = std::fs::read_to_string(page).ok().and_then(|text| {
            let (before, rest) = text.split_once(begin)?;
            let (_, after) = rest.split_once(end)?;
            std::fs::write(page, format!("{before}{begin}{table}{end}{after}")).ok()
        });
        if written.is_none() {
            eprintln!("sim: {page} cannot be written, or has no table of planted bugs");
            return ExitCode::from(2);
        }
    }
    if all_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One life for a person to read, made smaller where it breaks a promise.
#[allow(clippy::print_stdout, reason = "a program")]
fn trace(args: &Args, way: Way) -> ExitCode {
    let whole = Scenario::draw(args.theme, args.seed);
    let way = Way { trace: true, ..way };
    if args.whole {
        // Before the life, which may take long.
        println!("{whole:#?}");
    }
    let report = live(&whole, way);
    let Some(breach) = report.breaches.first().filter(|_| !args.whole) else {
        let word = if report.breaches.is_empty() { "no promise is broken" } else { "broken as marked above" };
        if !args.whole {
            println!("{whole:#?}");
        }
        println!("{}\n{word}; hash {:016x}", report.trace.join("\n"), report.hash);
        return if report.breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let small = shrink(&whole, way, breach.rule);
    let report = live(&small, way);
    println!("{small:#?}\n{}", report.trace.join("\n"));
    println!(
        "\n{} messages and {} events of {} and {} are left that break the same promise",
        small.messages.len(),
        small.events.len(),
        whole.messages.len(),
        whole.events.len()
    );
    for breach in &report.breaches {
        println!("BROKEN: {:?} at {:?}: {}", breach.rule, breach.at, breach.text);
    }
    ExitCode::FAILURE
}
