package storage

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"sync"
	"time"
)

// unfinished is the folder of what is being written: beside all objects, so that
// one look finds what killed writers left.
const unfinished = ".unfinished"

// folder is a Store over a folder. os.Root keeps every name inside it, whatever
// links lie there.
type folder struct {
	dir   string
	root  *os.Root
	close func() error
}

func openFolder(dir string) (Store, error) {
	if err := os.MkdirAll(path.Join(dir, unfinished), 0o750); err != nil {
		return nil, fmt.Errorf("make the storage folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the storage folder: %w", err)
	}
	return &folder{dir: dir, root: root, close: sync.OnceValue(root.Close)}, nil
}

func (f *folder) String() string { return "file://" + f.dir }

func (f *folder) Close() error { return f.close() }

// Create writes beside the objects, and links the file to its name at Commit: a
// link, unlike a rename, refuses a name that is taken.
func (f *folder) Create(ctx context.Context, name string) (Writer, error) {
	if _, err := f.Stat(ctx, name); err == nil {
		return nil, fmt.Errorf("create %s: %w", name, ErrExists)
	} else if !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	draft, file, err := f.draft()
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", name, err)
	}
	return &fileWriter{Writer: bufio.NewWriterSize(file, 256<<10), f: f, ctx: ctx, file: file, draft: draft, name: name}, nil
}

func (f *folder) draft() (string, *os.File, error) {
	draft := path.Join(unfinished, rand.Text())
	file, err := f.root.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	return draft, file, err
}

// parents makes the folders of a name, and each of them durable.
func (f *folder) parents(name string) error {
	dir := path.Dir(name)
	if err := f.root.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	for {
		if err := f.sync(dir); err != nil {
			return err
		}
		if dir == "." {
			return nil
		}
		dir = path.Dir(dir)
	}
}

func (f *folder) sync(dir string) error {
	d, err := f.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type fileWriter struct {
	*bufio.Writer
	f           *folder
	ctx         context.Context //nolint:containedctx // io.Writer takes none
	file        *os.File
	draft, name string
	done        bool
}

func (w *fileWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

func (w *fileWriter) Commit() (Info, error) {
	defer w.Abort()
	err := errors.Join(w.ctx.Err(), w.Flush())
	if err == nil {
		err = w.file.Sync()
	}
	if err == nil {
		err = w.f.parents(w.name)
	}
	if err == nil {
		err = w.f.root.Link(w.draft, w.name)
	}
	if err == nil {
		err = w.f.sync(path.Dir(w.name))
	}
	if errors.Is(err, fs.ErrExist) {
		err = ErrExists
	}
	if err != nil {
		return Info{}, fmt.Errorf("commit %s: %w", w.name, err)
	}
	return w.f.Stat(w.ctx, w.name)
}

func (w *fileWriter) Abort() {
	if w.done {
		return
	}
	w.done = true
	_ = w.file.Close() // what counts was synced; the rest goes
	_ = w.f.root.Remove(w.draft)
}

func (f *folder) Open(ctx context.Context, name string) (io.ReadSeekCloser, error) {
	if err := errors.Join(ctx.Err(), checkName(name)); err != nil {
		return nil, err
	}
	file, err := f.root.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", name, notFound(err))
	}
	return fileReader{file, ctx}, nil
}

// fileReader ends with its context, as a reader over a network does.
type fileReader struct {
	*os.File
	ctx context.Context //nolint:containedctx // io.Reader takes none
}

func (r fileReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.File.Read(p)
}

func (f *folder) Stat(ctx context.Context, name string) (Info, error) {
	if err := errors.Join(ctx.Err(), checkName(name)); err != nil {
		return Info{}, err
	}
	i, err := f.root.Stat(name)
	if err == nil && !i.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return Info{}, fmt.Errorf("look at %s: %w", name, notFound(err))
	}
	return Info{Name: name, Size: i.Size(), Modified: i.ModTime()}, nil
}

func notFound(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	return err
}

func (f *folder) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if prefix != "" {
			if err := checkName(strings.TrimSuffix(prefix, "/")); err != nil {
				yield(Info{}, err)
				return
			}
		}
		at := "." // the deepest folder that holds all such names
		if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
			at = prefix[:i]
		}
		err := fs.WalkDir(f.root.FS(), at, func(name string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // not made yet, or deleted under our hands
				return nil
			case err != nil || ctx.Err() != nil:
				return errors.Join(err, ctx.Err())
			case d.IsDir():
				return f.enter(name, prefix)
			case !strings.HasPrefix(name, prefix) || !d.Type().IsRegular():
				return nil
			}
			info, err := f.Stat(ctx, name)
			if errors.Is(err, ErrNotFound) {
				return nil
			}
			if err != nil {
				return err
			}
			if !yield(info, nil) {
				return fs.SkipAll
			}
			return nil
		})
		if err != nil {
			yield(Info{}, fmt.Errorf("list %s: %w", prefix, err))
		}
	}
}

// enter keeps a walk out of folders that hold no name with the prefix.
func (f *folder) enter(dir, prefix string) error {
	if dir == "." || strings.HasPrefix(dir+"/", prefix) || strings.HasPrefix(prefix, dir+"/") {
		return nil
	}
	if dir == unfinished || !strings.HasPrefix(dir, prefix) {
		return fs.SkipDir
	}
	return nil
}

func (f *folder) Delete(ctx context.Context, name string) error {
	if err := errors.Join(ctx.Err(), checkName(name)); err != nil {
		return err
	}
	err := f.root.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil { // what was erased stays erased after a loss of power
		err = f.sync(path.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func (f *folder) Replace(ctx context.Context, name string, body []byte) error {
	if err := errors.Join(ctx.Err(), checkName(name)); err != nil {
		return err
	}
	draft, file, err := f.draft()
	if err == nil {
		_, err = file.Write(body)
		err = errors.Join(err, file.Sync(), file.Close())
	}
	if err == nil {
		err = f.parents(name)
	}
	if err == nil {
		err = f.root.Rename(draft, name)
	}
	if err == nil {
		err = f.sync(path.Dir(name))
	}
	if err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

// Sweep cannot tell under which prefix a draft would have come to lie: it takes
// all of them that nobody has written to since before.
func (f *folder) Sweep(ctx context.Context, _ string, before time.Time) error {
	drafts, err := fs.ReadDir(f.root.FS(), unfinished)
	if err != nil {
		return fmt.Errorf("sweep the storage folder: %w", err)
	}
	for _, d := range drafts {
		if info, err := d.Info(); err == nil && info.ModTime().Before(before) && ctx.Err() == nil {
			_ = f.root.Remove(path.Join(unfinished, d.Name())) // gone already, or tried again next time
		}
	}
	return ctx.Err()
}

func (f *folder) Link(context.Context, string, time.Duration) (string, error) { return "", ErrNoLink }
