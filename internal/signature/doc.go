// Package signature signs and verifies webhooks the Standard Webhooks way,
// which is also Svix's and so Resend's: HMAC-SHA256 over
// "{id}.{timestamp}.{raw body}". It owns the secrets' form, the header names
// and the closed set of reasons for which a request is refused. It leaves to
// its callers where secrets are kept and what a verified body means. The front
// door verifies providers' webhooks with it, outbound delivery and the provider
// sandbox sign with it.
package signature
