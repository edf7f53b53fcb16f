package tasksemu

import (
	"container/heap"
	"time"
)

// A taskHeap is a heap of waiting tasks, in the order of their dispatch times. Tasks with the same
// time are in the order of arrival.
type taskHeap []*task

func (h taskHeap) Len() int { return len(h) }

func (h taskHeap) Less(i, j int) bool {
	if c := h[i].at.Compare(h[j].at); c != 0 {
		return c < 0
	}
	return h[i].number < h[j].number
}

func (h taskHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *taskHeap) Push(x any) {
	t := x.(*task)
	t.place = len(*h)
	*h = append(*h, t)
}

func (h *taskHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	t.place = -1
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

// take removes a due task from the heap, and returns it. It takes the task at the index place, if
// that task is due. Otherwise it takes the nearest task above it in the heap that is due. The first
// task must be due.
func (h *taskHeap) take(place int, now time.Time) *task {
	for (*h)[place].at.After(now) {
		place = (place - 1) / 2
	}
	return heap.Remove(h, place).(*task)
}

func (h *taskHeap) remove(t *task) { heap.Remove(h, t.place) }
