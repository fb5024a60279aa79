//! A seed is worth nothing if it gives another life the next time.

use std::process::Command;

/// J18: two processes run the same lives, of every theme, and get one hash. Maps have other keys in each of them. No promise is broken.
#[test]
fn j18_a_seed_gives_the_same_life_in_two_processes() {
    // Without tokio_unstable the choices of tokio's own select! come from elsewhere; ./test runs this under it.
    if !cfg!(tokio_unstable) {
        return;
    }
    for (theme, lives) in [("small", "700"), ("any", "200"), ("junk", "50"), ("calm", "50"), ("partitions", "100")] {
        let hash = || {
            let run =
                Command::new(env!("CARGO_BIN_EXE_sim")).args(["--theme", theme, "--lives", lives]).output().unwrap();
            let told = String::from_utf8(run.stdout).unwrap();
            assert!(run.status.success(), "theme {theme}: {told}");
            told.lines().next().and_then(|line| line.split_once("hash ")).map(|(_, hash)| hash.to_owned()).unwrap()
        };
        assert_eq!(hash(), hash(), "theme {theme}");
    }
}
