// Package rules is the stage that decides what an event means: each rule of
// its tenant whose condition holds gives points and asks for messages. It reads
// core.event.tracked and writes the points ledger and notification requests; it
// neither resolves channels nor sends. What a rule is, internal/rule says.
//
// The ledger's unique (tenant, event, rule) is the stage's natural fence: a
// rule fires once for an event, whatever the number of its records. A rule that
// gives no points has an entry of zero, and one that its cap held back an entry
// that says so.
package rules

// Stage names the stage, its group carril.rules and its positions.
const Stage = "rules"
