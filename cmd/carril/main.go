// Carril is a multi-tenant, Kafka-based stream processor in one binary: each
// role runs alone in any number of replicas, or all together. This package
// parses flags; cmd/carril/app does the wiring.
package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"github.com/softcrum/carril/cmd/carril/app"
	"github.com/softcrum/carril/internal/cores"
	"github.com/softcrum/carril/internal/devstack"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
	exitNoGo   = 3 // readiness
)

type cli struct {
	Settings app.Settings `embed:""`
	Config   configFile   `name:"config" help:"Settings file; ${config_default} when it is there." placeholder:"FILE"`

	Dev      devCmd      `cmd:"" help:"Run everything in one process on embedded parts, with a demo tenant: start here."`
	All      allCmd      `cmd:"" help:"Run all roles in one process."`
	Ingest   ingestCmd   `cmd:"" help:"Run the HTTP front door."`
	Process  processCmd  `cmd:"" help:"Run the stream stages: identity and append, rules, channels, statuses."`
	Dispatch dispatchCmd `cmd:"" help:"Run rail workers."`
	Webhooks webhooksCmd `cmd:"" help:"Run outbound webhook delivery."`
	Maintain maintainCmd `cmd:"" help:"Run maintenance jobs; of N replicas one is active."`

	Migrate migrateCmd `cmd:"" help:"Bring the database and the topics to this version."`
	Tenant  tenantCmd  `cmd:"" help:"Make, list and set tenants."`
	Key     keyCmd     `cmd:"" help:"Make, rotate and revoke API keys."`
	Rules   rulesCmd   `cmd:"" help:"Write tenants' rules, and try them over past events."`
	Blast   blastCmd   `cmd:"" help:"Make, feed, start and follow tenants' blasts."`
	Bucket  bucketCmd  `cmd:"" help:"List and set what providers and tenants may send a second, and the providers' quotas."`
	Sender  senderCmd  `cmd:"" help:"Verify, pause and resume tenants' senders."`
	Contact contactCmd `cmd:"" help:"Show, merge, unmerge and erase contacts."`
	Trace   traceCmd   `cmd:"" help:"Show everything that an event caused."`
	Dlq     dlqCmd     `cmd:"" name:"dlq" help:"List, show, replay and discard dead letters."`
	Export  exportCmd  `cmd:"" help:"Export a tenant's events; the same arguments go on where it stopped."`

	Partitions partitionsCmd `cmd:"" help:"List, make and repair the partitions of time-partitioned tables."`
	Retention  retentionCmd  `cmd:"" help:"See and run what plans do not keep any longer: export, verify, drop."`

	Positions positionsCmd `cmd:"" help:"Show, release and mend stream positions."`
	Sandbox   sandboxCmd   `cmd:"" help:"Run the provider sandbox."`
	Bench     benchCmd     `cmd:"" help:"Measure each part against a baseline in the same run."`
	Conf      configCmd    `cmd:"" name:"config" help:"Print the effective settings, secrets masked."`
	Version   versionCmd   `cmd:"" help:"Print the version."`
}

func main() {
	devstack.RunChildIfAsked()
	cores.Spare()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without its process: the exit code of one command.
func run(args []string, stdout, stderr io.Writer) int {
	var c cli
	exited := -1
	parser, err := kong.New(&c, kong.Name("carril"),
		kong.Description("Carril takes in events over REST, keeps them in Kafka and PostgreSQL, and sends the messages that they cause on two rails per channel."+
			"\n\nSettings come from flags, then CARRIL_* variables, then carril.yaml. Data goes to standard output, progress and logs to standard error."+
			"\n\nExit codes: 0 done, 1 failed, 2 usage or configuration, 3 NO-GO."),
		kong.Vars{"rule_file": ruleFile, "enum_sasl": ",PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "config_default": defaultConfigFile, "contact_name": contactName},
		kong.ExplicitGroups([]kong.Group{
			{Key: "kafka", Title: "Kafka"}, {Key: "stores", Title: "Stores"}, {Key: "messaging", Title: "Messaging"},
			{Key: "listen", Title: "Listeners"}, {Key: "process", Title: "Process"}}),
		kong.Writers(stdout, stderr), kong.Exit(func(code int) { exited = code }), kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.WithBeforeResolve(func(k *kong.Kong, ctx *kong.Context) error { return loadConfig(ctx) }))
	if err != nil {
		fmt.Fprintln(stderr, "carril:", err)
		return exitUsage
	}
	ctx, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err == nil {
		err = noEmptyArguments(ctx)
	}
	if err != nil {
		fmt.Fprintln(stderr, "carril:", err)
		return exitUsage
	}
	for _, check := range []func() error{
		func() error { return app.CheckEnvironment(os.Environ()) },
		func() error { return c.Settings.ReadSecretFiles(os.Getenv) },
		c.Settings.Validate,
	} {
		if err := check(); err != nil {
			fmt.Fprintln(stderr, "carril:", err)
			return exitUsage
		}
	}
	env := &environment{set: c.Settings, out: stdout, err: stderr, log: newLogger(stderr, c.Settings.LogLevel)}
	return exitCode(ctx.Run(env), stderr)
}

// noEmptyArguments refuses an argument of a command that is there and says
// nothing: --tenant "$TENANT" without the variable would mean all tenants, or the
// provider's own bucket. Settings may be emptied: a variable above them is.
func noEmptyArguments(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		v := p.Positional
		var name string
		switch {
		case p.Resolved:
			continue
		case p.Flag != nil && p.Flag.Group == nil:
			v, name = p.Flag.Value, "--"+p.Flag.Name
		case v != nil:
			name = v.Summary()
		default:
			continue
		}
		if given, ok := ctx.Value(p).Interface().(string); ok && given == "" && v.Set {
			return fmt.Errorf("%s is empty: leave it out, or say what it is", name)
		}
	}
	return nil
}

func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, app.ErrConfig):
		fmt.Fprintln(stderr, "carril:", err)
		return exitUsage
	}
	fmt.Fprintln(stderr, "carril:", err)
	return exitFailed
}

// environment is what a command works in.
type environment struct {
	set app.Settings
	out io.Writer // data
	err io.Writer // progress, logs
	log *slog.Logger

	fromDev bool // the stores are those of a `carril dev` beside us
}

func newLogger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // the flag's enum lets nothing else in
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: l}))
}
