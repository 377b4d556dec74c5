package retention

// DieAt has the job die, as far as anybody outside can tell, at a point: what is
// not committed there is lost.
func (j *Job) DieAt(probe func(point string) error) { j.probe = probe }

// Points are all of them, in the order of a leaf's way.
var Points = []string{pointDetaching, pointDetached, pointGrown, pointStored, pointExported, pointRead, pointVerified, pointDropping, pointDropped}
