package migrations

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
)

// Fingerprint is 12 hexadecimal digits that follow from the names and the
// content of all migrations: two builds with the same one make the same
// database. Tests name their migrated template after it.
func Fingerprint() string {
	h := sha256.New()
	// An embedded file system has no errors to report.
	_ = fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, path)
		h.Write([]byte(path))
		h.Write(content)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:12]
}
