// Package taxonomy owns what a tenant says that its events must look like: one
// JSON Schema (draft 2020-12) an event name, of properties, or of the traits of
// an identify (FS-CORE-0006 §8). It compiles schemas within bounds, keeps those
// in force in memory and judges payloads by them. What a judgement leads to is
// its callers': the front door refuses what an enforced schema refuses, the
// append stage leaves a warning.
//
// # What a schema may cost
//
// Judging is on the path of every event of its name, so a schema is refused when
// it could be slow: by its size, and by the number of subschemas, patterns and
// enumerated values that one value can meet on its way down (see cost). A
// payload whose size times that cost is beyond a budget is not judged but called
// a violation, so that no tenant's schema can take the processor from others.
// References stay within the schema, and nothing is ever fetched. format is an
// annotation, as the draft has it.
//
// # Where it holds
//
// Judging never waits for a database: the schemas of all tenants that have any
// stand in memory, read again every half minute and at once when PostgreSQL
// notifies. While it is away, what was known last is in force, for as long as
// it takes. A tenant without schemas costs one look-up in a map.
package taxonomy
