//! The forebay program: parse, dispatch, say what went wrong.
//!
//! Data goes to stdout, everything else to stderr. The exit code is 0 when done, 1 when the answer is
//! no (a command says so by returning `Answer::No`), 2 when something failed. One file per command.

mod bench;
mod cache;
mod daemon;
mod demo;
mod generate;
mod hint;
mod interrupt;
mod log;
mod plan;
mod profile;
mod python;
mod rng;
mod serve;
mod simulate;
mod status;
mod svg;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Data loading for training, made once and shared.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train four jobs on generated JPEGs, fed from one pool and each on its own.
    Demo(demo::Demo),
    /// Measure Forebay beside other loaders, in interleaved rounds on the same cores and data.
    Bench(bench::Bench),
    /// Feed the training jobs of this user from one pool of ready samples.
    Serve(serve::Serve),
    /// Show the daemon, its jobs and its pools.
    Status(status::Status),
    /// Let the daemon answer what it was asked, then end it.
    Stop(status::Stop),
    /// Show and compare logs of what training jobs received.
    Log(log::Log),
    /// Say what to keep in memory, what each job gets from that, and what would give more.
    Plan(plan::Plan),
    /// Measure what storage, cores and memory give here, and what a dataset with a recipe costs.
    Profile(profile::Profile),
    /// Simulate jobs that share one loading system, under our policy and published ones.
    Simulate(simulate::Simulate),
}

/// What a command that ran to its end has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Exit code 0.
    Yes,
    /// Exit code 1.
    No,
}

fn main() -> ExitCode {
    let program = Program::parse();
    let outcome = match program.command {
        Command::Demo(demo) => demo.run(),
        Command::Bench(bench) => bench.run(),
        Command::Serve(serve) => serve.run(),
        Command::Status(status) => status.run(),
        Command::Stop(stop) => stop.run(),
        Command::Log(log) => log.run(),
        Command::Plan(plan) => plan.run(),
        Command::Profile(profile) => profile.run(),
        Command::Simulate(simulate) => simulate.run(),
    };
    match outcome {
        Ok(Answer::Yes) => ExitCode::SUCCESS,
        Ok(Answer::No) => ExitCode::from(1),
        Err(error) => {
            eprint!("{}", hint::render(&error));
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Program::command().debug_assert();
    }

    #[test]
    fn flags_reach_their_commands() {
        let program = Program::parse_from(["forebay", "demo", "--images", "12", "--epochs", "3", "--json"]);
        let Command::Demo(demo) = program.command else { panic!("not a demo") };
        assert_eq!((demo.images, demo.epochs, demo.json), (12, 3, true));
    }

    #[test]
    fn nothing_to_generate_is_refused() {
        assert!(Program::try_parse_from(["forebay", "demo", "--images", "0"]).is_err());
        assert!(Program::try_parse_from(["forebay", "demo", "--epochs", "0"]).is_err());
    }
}
