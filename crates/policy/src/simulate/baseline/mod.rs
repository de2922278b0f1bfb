//! Published policies, as far as they are specified, to compare with.

use super::{Member, Policy, Scenario, System, Wrong};

/// The system for a published policy.
pub(super) fn build(
    policy: Policy,
    _scenario: &Scenario,
    _members: &[Member],
) -> Result<Box<dyn System>, Wrong> {
    Err(Wrong(format!("{} is not simulated", policy.name())))
}
